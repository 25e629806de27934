package command_test

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/tools/demo/internal/page"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

// diagnostics is the service that ringquery serves.
var diagnostics = pb.File_clusterring_diagnostics_v1alpha1_diagnostics_service_proto.Services().
	ByName("DiagnosticsService")

var update = flag.Bool("update", false, "record the output of the commands in docs/queries.md")

// TestQueries starts what make up starts, and runs docs/queries.md, which asks its query services everything.
func TestQueries(t *testing.T) {
	d := newDesk(t)
	up := d.start("up", "make down")
	sh := d.shell()
	run := func(command string) string {
		output, err := sh.Run(t.Context(), command)
		require.NoError(t, err)

		return output
	}

	require.Contains(t, run(`grpcurl $RINGQUERY_TLS list`), "certificate signed by unknown authority")
	require.Contains(t, run(`grpcurl -cacert $RINGQUERY_CA $RINGQUERY_TLS list`), "Unauthenticated")
	require.Contains(t, run(`grpcurl -plaintext $RINGQUERY_TLS list`), "Failed to dial")
	run(`TOKEN=$(kubectl create token default --audience ringquery)`)

	const guarded = `grpcurl -cacert $RINGQUERY_CA -H "authorization: Bearer $TOKEN" $RINGQUERY_TLS `
	require.Contains(t, run(guarded+`list`), diagnostics.FullName(), "to know who asks is enough")
	require.Contains(t, run(guarded+string(diagnostics.FullName())+`/ListRings`), "PermissionDenied")
	t.Run("docs/queries.md", func(t *testing.T) {
		file := filepath.Join(localplane.Root(), "docs", "queries.md")
		content, err := os.ReadFile(file)
		require.NoError(t, err)
		p, err := page.Parse(string(content))
		require.NoError(t, err)
		requireEverything(t, p)

		differ, err := p.Update(t.Context(), sh, patience/3)
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
