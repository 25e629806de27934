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
