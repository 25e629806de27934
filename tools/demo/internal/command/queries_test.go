package command_test

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/tools/demo/internal/page"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

// diagnostics is the service that ringquery serves.
var diagnostics = pb.File_clusterring_diagnostics_v1alpha1_diagnostics_service_proto.Services().
	ByName("DiagnosticsService")

// question is what grpcurl asks a method, and what is in the answer.
type question struct{ request, answer string }

const site1 = `{"group": "example.clusterring.dev", "kind": "Website", "namespace": "web-2", "name": "site-1"}`

// questions has one for every method.
var questions = map[protoreflect.Name]question{
	"ListRings": {`{}`, `"availableShards": 3`},
	"GetRing":   {`{"name": "example"}`, `"name": "shard-3"`},
	"Locate":    {`{"object": ` + site1 + `}`, `"namespace": "web-2"`},
	"LocateAll": {`{"id": "1", "question": {"object": ` + site1 +
		`}} {"id": "2", "question": {"object": {"kind": "Secret", "namespace": "a", "name": "b"}}}`, `"NOT_SHARDED"`},
	"WatchRing": {`{"name": "example"}`, `"name": "shard-3"`},
	"Explain":   {`{"object": ` + site1 + `}`, `"reason": "ASSIGNED"`},
	"ListAssignments": {`{"ring": "example", "group": "example.clusterring.dev", "resource": "websites"}`,
		`"name": "site-49"`},
	"Simulate": {`{"ring": "example", "add": ["shard-4"]}`, `"name": "shard-4"`},
}

var update = flag.Bool("update", false, "record the output of the commands in docs/queries.md")

// TestQueries starts what make up starts, asks its query services everything with the real grpcurl, and runs
// docs/queries.md.
func TestQueries(t *testing.T) {
	d := newDesk(t)
	up := d.start("up", "make down")
	sh := &terminal{T: t, Shell: d.shell()}

	sh.run(`kubectl create serviceaccount grpcurl`)
	sh.run(`TOKEN=$(kubectl create token grpcurl --audience ringquery)`)
	t.Run("grpcurl/plaintext", func(t *testing.T) { (&terminal{t, sh.Shell}).askEverything(`-plaintext`, `$RINGQUERY`) })
	t.Run("grpcurl/TLS", func(t *testing.T) {
		sh := &terminal{t, sh.Shell}
		require.Contains(t, sh.run(`grpcurl $RINGQUERY_TLS list`), "certificate signed by unknown authority")
		require.Contains(t, sh.run(`grpcurl -cacert $RINGQUERY_CA $RINGQUERY_TLS list`), "Unauthenticated")
		require.Contains(t, sh.run(`grpcurl -plaintext $RINGQUERY_TLS list`), "Failed to dial")
	})
	t.Run("grpcurl/TLS and a token", func(t *testing.T) {
		sh := &terminal{t, sh.Shell}

		const guarded = `-cacert $RINGQUERY_CA -H "authorization: Bearer $TOKEN"`
		require.Contains(t, sh.run(`grpcurl `+guarded+` $RINGQUERY_TLS list`), diagnostics.FullName(),
			"to know who asks is enough")
		require.Contains(t, sh.run(`grpcurl `+guarded+` $RINGQUERY_TLS `+string(diagnostics.FullName())+`/ListRings`),
			"PermissionDenied")
		sh.run(`kubectl create clusterrolebinding grpcurl --clusterrole clusterring:diagnostics-viewer ` +
			`--serviceaccount default:grpcurl`)
		require.Eventually(t, func() bool {
			return strings.Contains(sh.run(`kubectl auth can-i get clusterrings --subresource diagnostics `+
				`--as system:serviceaccount:default:grpcurl`), "yes")
		}, patience, tick)
		sh.askEverything(guarded, `$RINGQUERY_TLS`)
	})
	t.Run("docs/queries.md", func(t *testing.T) {
		file := filepath.Join(localplane.Root(), "docs", "queries.md")
		content, err := os.ReadFile(file)
		require.NoError(t, err)
		p, err := page.Parse(string(content))
		require.NoError(t, err)
		requireEverything(t, p)

		differ, err := p.Update(t.Context(), sh.Shell, patience/3)
		require.NoError(t, err)

		if *update {
			require.NoError(t, os.WriteFile(file, []byte(p.String()), 0o600)) // it exists, so its mode stays
		} else {
			require.Empty(t, differ, "if the page is wrong: make docs")
		}
	})
	require.Contains(t, d.down(), "Removed the demo")
	d.await(up, 0)
	d.requireNothingLeft()
}

// shell returns a shell that knows what demo env says.
func (d *desk) shell() *page.Shell {
	d.Helper()
	sh, err := page.NewShell(d.TempDir(),
		[]string{"PATH=" + os.Getenv("PATH"), "HOME=" + d.home, "LC_ALL=C.UTF-8", "TZ=UTC"})
	require.NoError(d, err)
	d.Cleanup(func() { require.NoError(d, sh.Close()) })
	env, out := d.demo("env")
	require.NoError(d, env.Run(), out)
	_, err = sh.Run(d.Context(), out.String())
	require.NoError(d, err)

	return sh
}

// terminal runs commands.
type terminal struct {
	*testing.T
	*page.Shell
}

// run runs a command and returns what it prints.
func (s *terminal) run(command string) string {
	s.Helper()
	output, err := s.Shell.Run(s.Context(), command)
	require.NoError(s, err)

	return output
}

// askEverything asks a server that grants everything: what it serves, and a question to every method.
func (s *terminal) askEverything(how, address string) {
	service := string(diagnostics.FullName())
	require.Contains(s, s.run(fmt.Sprintf(`grpcurl %s %s list`, how, address)), service)
	described := s.run(fmt.Sprintf(`grpcurl %s %s describe %s`, how, address, service))
	require.Len(s, questions, diagnostics.Methods().Len())

	for name := range maps.Keys(questions) {
		method := diagnostics.Methods().ByName(name)
		require.NotNil(s, method, name)
		require.Contains(s, described, "rpc "+string(name)+" (")
		require.EventuallyWithT(s, func(c *assert.CollectT) { require.NoError(c, s.ask(how, address, method)) },
			patience, tick, name)
	}
}

// ask asks a method and checks the answer, every message of it. A watch is ended after a while, by grpcurl.
func (s *terminal) ask(how, address string, method protoreflect.MethodDescriptor) error {
	q, limit := questions[method.Name()], ""
	if method.IsStreamingServer() && !method.IsStreamingClient() {
		limit = "-max-time 1"
	}

	output := s.run(fmt.Sprintf(`printf '%%s' '%s' | grpcurl %s %s -d @ %s %s/%s 2>/dev/null`, q.request, how, limit,
		address, diagnostics.FullName(), method.Name()))
	answers := json.NewDecoder(strings.NewReader(output))

	for {
		var answer json.RawMessage
		if err := answers.Decode(&answer); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return fmt.Errorf("decode %s: %w", output, err)
		}

		if err := protojson.Unmarshal(answer, dynamicpb.NewMessage(method.Output())); err != nil {
			return fmt.Errorf("decode %s: %w", answer, err)
		}
	}

	if !strings.Contains(output, q.answer) {
		return fmt.Errorf("there is no %s in %s", q.answer, output)
	}

	return nil
}

// requireEverything checks that the page shows every method and every command of the plugin, and asks in every way.
func requireEverything(t *testing.T, p *page.Page) {
	t.Helper()

	var commands []string
	for _, c := range p.Commands {
		commands = append(commands, c.Text)
	}

	var wanted []string
	for i := range diagnostics.Methods().Len() {
		wanted = append(wanted, string(diagnostics.FullName())+"/"+string(diagnostics.Methods().Get(i).Name()))
	}

	for _, name := range []string{"list", "get", "locate", "explain", "assignments", "simulate", "watch"} {
		wanted = append(wanted, "kubectl ring "+name+" ")
	}

	for _, want := range append(wanted, "grpcurl -plaintext ", "grpcurl -cacert ", "authorization: Bearer $TOKEN",
		"--ca-file", "--service-account") {
		require.True(t, slices.ContainsFunc(commands, func(c string) bool { return strings.Contains(c, want) }),
			"the page has no command with %q", want)
	}
}
