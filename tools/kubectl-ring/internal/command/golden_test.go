package command_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/command"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestMain(m *testing.M) { os.Exit(localplane.Main(m, v1alpha1.AddToScheme)) }

// TestTranscripts compares the output and the exit code of the program with testdata, which has one file per command.
func TestTranscripts(t *testing.T) {
	t.Setenv("HOME", "/home/you") // it is in the help
	t.Setenv("KUBECACHEDIR", "")
	s := serve(t)

	for name, lines := range map[string][]string{
		"list": {
			"list", "list -o wide", "list --no-headers", "list -o name", "list -o json",
			"list -o yaml", "list -o csv",
			"list too much", "list --nonsense",
		},
		"get": {
			"get example", "get example -o wide", "get example --no-headers", "get",
			"get leaving", "get released", "get inactive",
			"get tenants --count-objects", "get tenants --count-objects --no-headers",
			"get example -o name", "get example -o json", "get -o yaml",
		},
		"locate": {
			"locate websites.example.clusterring.dev/blog -n default",
			"locate Website.example.clusterring.dev blog -n default -o wide",
			"locate websites/blog -o name", "locate websites/blog -o json",
			"locate websites/blog -o yaml",
			"locate configmaps/page --owner websites/blog -n default -o wide", "locate deployments.apps/nowhere",
			"locate websites blog shop -n default", "locate websites/blog websites/BAD websites/shop -n default",
			"locate websites/blog websites/BAD -o json", "locate websites blog shop -o yaml",
			"locate websites blog shop -o name",
			"locate websites/BAD", "locate", "locate websites", "locate websites/a/b",
			"locate websites a/b",
			"locate websites/a --owner b",
		},
		"explain": {
			"explain websites/fine -n default", "explain configmaps page -n default",
			"explain configmaps/page -n default -o wide",
			"explain websites/both", "explain websites/gone", "explain websites/fine -o json",
			"explain configmaps/page --no-headers",
			"explain configmaps/page -o name", "explain a/b c/d", "explain a",
		},
		"assignments": {
			"assignments example", "assignments example websites -o wide",
			"assignments example Website --no-headers",
			"assignments example websites -o name", "assignments example configmaps -o yaml",
			"assignments example -o json",
			"assignments example --shard none", "assignments example websites --shard none -o json",
			"assignments example websites --shard expired",
			"assignments example --state lost", "assignments example secrets", "assignments none",
		},
		"simulate": {
			"simulate example --add 1,shard-9 --remove shard-2", "simulate example --add 1 -o wide",
			"simulate example --add 2 --count-objects",
			"simulate example --add 2 --no-headers", "simulate example", "simulate example --add 0",
			"simulate example --remove shard-1,shard-2",
			"simulate example --add 900,200", "simulate",
			"simulate example --changes-per-second 20 --work 1s --workers 12",
			"simulate example --add 2 --work 1s --changes-per-second 20 --no-headers",
			"simulate example --remove shard-1,shard-2 --work 1s -o json",
			"simulate example --add 1 --work 2s -o yaml",
			"simulate example --changes-per-second 20", "simulate example --add 1 --work 1s --workers 0",
		},
		"errors": {
			"get nobody", "get secret", "get private", "get slow",
			"locate configmaps/orphan",
			"nonsense", "watch", "get example --request-timeout later", "get example --insecure-skip-tls-verify",
		},
		"init": {
			"init --help",
			"init --resource websites.example.org --controlled configmaps --slots 3 --fence" + operator,
			"init shop --resource deployments.apps --controlled replicasets.apps:pods,secrets" + operator,
			"init --resource websites.example.org --container web -o kustomize" + operator,
			"init", "init a b", "init --resource websites.example.org", "init --resource websites" + operator,
			"init --resource Web_Sites.example.org" + operator, "init --resource replicasets.apps:pods" + operator,
			"init --resource deployments.apps --controlled deployments.apps" + operator,
			"init --resource websites.example.org --service-account operator",
			"init --resource websites.example.org" + operator + " -n OPS",
			"init --resource websites.example.org" + operator + " --service-account ops/operator",
			"init Shop --resource websites.example.org" + operator,
			"init " + strings.Repeat("a", 62) + " --resource websites.example.org" + operator,
			"init --resource websites.example.org --slots 5001" + operator,
			"init --resource websites.example.org -o helm" + operator,
		},
		"help": {"--help", "list --as nobody --no-headers", "locate --help", "completion"},
	} {
		t.Run(name, func(t *testing.T) {
			got := play(t, lines, func(p *program, line string) int {
				return p.run(t.Context(), s.at(strings.Fields(line)...)...)
			})
			golden(t, name, strings.ReplaceAll(got, s.address, "SERVER"))
		})
	}
}

// play runs the program with each line, and returns what it prints.
func play(t *testing.T, lines []string, run func(p *program, line string) int) string {
	t.Helper()

	var transcript strings.Builder

	for _, line := range lines {
		p := newProgram(t)
		code := run(p, line)
		fmt.Fprintf(&transcript, "$ kubectl ring %s\n", line)
		transcript.WriteString(p.out.String())

		for line := range strings.Lines(p.err.String()) {
			transcript.WriteString("! " + line)
		}

		fmt.Fprintf(&transcript, "[exit %d]\n\n", code)
	}

	return transcript.String()
}

func golden(t *testing.T, name, got string) {
	t.Helper()

	path := filepath.Join("testdata", name+".txt")
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(got), 0o600))
	}

	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), got, "%s; go test -update rewrites it", path)
}

// onPage compares a command and its output with the block of a page of the documentation that has a mark.
func onPage(t *testing.T, page, mark, transcript string) {
	t.Helper()

	page = filepath.Join(localplane.Root(), "docs", page)
	content, err := os.ReadFile(page)
	require.NoError(t, err)

	begin, end := "<!-- "+mark+" -->\n", "<!-- end of "+mark+" -->"
	before, rest, ok := strings.Cut(string(content), begin)
	require.True(t, ok, "there is no mark for the output")
	_, after, ok := strings.Cut(rest, end)
	require.True(t, ok, "there is no mark for the end of the output")

	want := before + begin + "```console\n$ kubectl ring " + transcript + "```\n" + end + after

	if *update {
		require.NoError(t, os.WriteFile(page, []byte(want), 0o644)) //nolint:gosec // a page of documentation
		return
	}

	require.Equal(t, want, string(content), "%s; go test -update rewrites it", page)
}

// TestPageShowsSizes compares the output on the page about sizes with that of the program.
func TestPageShowsSizes(t *testing.T) {
	const line = "simulate example --add 2 --changes-per-second 40 --work 1s --workers 12"

	s := serve(t)
	s.simulation = &pb.SimulateResponse{
		Moved: 0.4, Least: 0.4, Counted: []*pb.CountedResource{
			{Group: "example.clusterring.dev", Resource: "websites", Objects: 10_000, Moved: 4_017},
		},
	}

	for _, shard := range []struct {
		name          string
		before, after int32 // partitions
		had, has      int64 // objects
	}{
		{"new-1", 0, 3244, 0, 1987},
		{"new-2", 0, 3309, 0, 2030},
		{"shard-1", 5423, 3162, 3307, 1915},
		{"shard-2", 5456, 3293, 3349, 2026},
		{"shard-3", 5505, 3376, 3344, 2042},
	} {
		s.simulation.Shards = append(s.simulation.Shards, &pb.SimulatedShard{
			Name: shard.name, PartitionsBefore: shard.before, ShareBefore: float64(shard.before) / 16384,
			PartitionsAfter: shard.after, ShareAfter: float64(shard.after) / 16384,
			ObjectsBefore: shard.had, ObjectsAfter: shard.has,
		})
	}

	p := newProgram(t)
	require.Equal(t, command.Fine, p.run(t.Context(), s.at(strings.Fields(line)...)...), p.err.String())
	onPage(t, "sizing.md", "simulation", line+"\n"+p.out.String())
}
