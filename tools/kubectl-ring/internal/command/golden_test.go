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

// question is a command line and its standard input.
type question struct {
	line string
	in   string
}

// TestTranscripts compares the output and the exit code of the program with testdata, which has one file per command.
func TestTranscripts(t *testing.T) {
	t.Setenv("HOME", "/home/you") // it is in the help
	t.Setenv("KUBECACHEDIR", "")
	s := serve(t)
	file := filepath.Join(t.TempDir(), "objects")
	require.NoError(t, os.WriteFile(file, []byte("websites/blog\n\n# a comment\nwebsites/shop team-a\n"), 0o600))

	for name, questions := range map[string][]question{
		"list": {
			{line: "list"}, {line: "list -o wide"}, {line: "list --no-headers"}, {line: "list -o name"}, {line: "list -o json"},
			{line: "list -o yaml"}, {line: "list -o csv"}, {line: "list -o jsonpath={.rings[*].name}"},
			{line: "list -o jsonpath={.rings"}, {line: "list -o jsonpath="},
			{line: "list too much"}, {line: "list --nonsense"},
		},
		"get": {
			{line: "get example"}, {line: "get example -o wide"}, {line: "get example --no-headers"}, {line: "get"},
			{line: "get leaving"}, {line: "get released"}, {line: "get inactive"},
			{line: "get tenants"}, {line: "get tenants --count-objects=false"}, {line: "get tenants --no-headers"},
			{line: "get example -o name"}, {line: "get example -o json"}, {line: "get -o yaml"},
		},
		"locate": {
			{line: "locate websites.example.clusterring.dev/blog -n default"},
			{line: "locate Website.example.clusterring.dev blog -n default -o wide"},
			{line: "locate websites/blog -o name"}, {line: "locate websites/blog -o json"},
			{line: "locate websites/blog -o yaml"},
			{line: "locate configmaps/page --owner websites/blog -n default -o wide"}, {line: "locate deployments.apps/nowhere"},
			{line: "locate websites blog shop -n default"}, {line: "locate websites/blog websites/BAD websites/shop -n default"},
			{line: "locate websites/blog websites/BAD -o json"}, {line: "locate websites blog shop -o yaml"},
			{line: "locate websites blog shop -o name"},
			{line: "locate -f -", in: "websites/blog a\nwhat is this line\nwebsites\nwebsites/shop\n"},
			{line: "locate -f " + file}, {line: "locate -f /does/not/exist"},
			{line: "locate websites/BAD"}, {line: "locate"}, {line: "locate websites"}, {line: "locate websites/a/b"},
			{line: "locate websites a/b"},
			{line: "locate websites/a -f -"}, {line: "locate websites/a --owner b"},
		},
		"explain": {
			{line: "explain websites/fine -n default"}, {line: "explain configmaps page -n default"},
			{line: "explain configmaps/page -n default -o wide"},
			{line: "explain websites/both"}, {line: "explain websites/gone"}, {line: "explain websites/fine -o json"},
			{line: "explain configmaps/page --no-headers"},
			{line: "explain configmaps/page -o name"}, {line: "explain a/b c/d"}, {line: "explain a"},
		},
		"assignments": {
			{line: "assignments example"}, {line: "assignments example websites -o wide"},
			{line: "assignments example Website --no-headers"},
			{line: "assignments example websites -o name"}, {line: "assignments example configmaps -o yaml"},
			{line: "assignments example -o json"},
			{line: "assignments example --shard none"}, {line: "assignments example websites --shard none -o json"},
			{line: "assignments example websites --shard expired"},
			{line: "assignments example --state lost"}, {line: "assignments example secrets"}, {line: "assignments none"},
		},
		"simulate": {
			{line: "simulate example --add 1,shard-9 --remove shard-2"}, {line: "simulate example --add 1 -o wide"},
			{line: "simulate example --add 2 --count-objects"}, {line: "simulate example --rename a=b -o yaml"},
			{line: "simulate example --add 2 --no-headers"}, {line: "simulate example"}, {line: "simulate example --add 0"},
			{line: "simulate example --remove shard-1,shard-2"},

			{line: "simulate example --add 900,200"}, {line: "simulate example --rename a"}, {line: "simulate"},
		},
		"errors": {
			{line: "get nobody"}, {line: "get secret"}, {line: "get private"}, {line: "get slow"},
			{line: "locate configmaps/orphan"},
			{line: "nonsense"}, {line: "get example --request-timeout later"}, {line: "get example --insecure-skip-tls-verify"},
		},
		"help": {{line: "--help"}, {line: "list --as nobody --no-headers"}, {line: "locate --help"}, {line: "completion"}},
	} {
		t.Run(name, func(t *testing.T) {
			var transcript strings.Builder

			for _, q := range questions {
				p := newProgram(t)
				p.in = q.in
				code := p.run(t.Context(), s.at(strings.Fields(q.line)...)...)
				fmt.Fprintf(&transcript, "$ kubectl ring %s\n", strings.ReplaceAll(q.line, file, "objects.txt"))
				transcript.WriteString(p.out.String())

				for line := range strings.Lines(p.err.String()) {
					transcript.WriteString("! " + line)
				}
				fmt.Fprintf(&transcript, "[exit %d]\n\n", code)
			}
			golden(t, name, strings.ReplaceAll(transcript.String(), s.address, "SERVER"))
		})
	}
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
