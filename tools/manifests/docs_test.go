package manifests_test

import (
	"flag"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/tools/manifests"
)

var update = flag.Bool("update", false, "write the generated parts of docs")

// TestFlagsAreDocumented compares the tables in docs/installation.md with what each service says itself.
func TestFlagsAreDocumented(t *testing.T) {
	replaceBlock(t, "docs/installation.md", "flags", tables(t))
}

// tables returns one table for each service, with what all have, and what the leaders have, in tables of their own.
func tables(t *testing.T) string {
	t.Helper()

	services := []string{"leasemonitor", "assigner", "rebalancer", "ringquery"}

	has, all := map[string][]manifests.Flag{}, map[manifests.Flag]int{}
	for _, service := range services {
		has[service] = manifests.ParseHelp(help(t, service))
		require.NotEmpty(t, has[service])

		for _, f := range has[service] {
			all[f]++
		}
	}
	// All four share some flags, and those with a leader some more.
	every, leaders := len(services), len(services)-1
	pick := func(service string, shown func(shared int) bool) string {
		return manifests.Table(slices.DeleteFunc(slices.Clone(has[service]), func(f manifests.Flag) bool { return !shown(all[f]) }))
	}

	var b strings.Builder
	b.WriteString("### Every service\n\n" + pick(services[0], func(shared int) bool { return shared == every }))
	b.WriteString("\n### leasemonitor, assigner and rebalancer\n\nOf these, one replica leads.\n\n" + pick(services[0], func(shared int) bool { return shared == leaders }))

	for _, service := range services {
		b.WriteString("\n### " + service + "\n\n" + pick(service, func(shared int) bool { return shared < leaders }))
	}

	return b.String()
}

func TestParseHelp(t *testing.T) {
	flags := manifests.ParseHelp(`Text.

Flags:
      --tls-secret [namespace/]name   a Secret; twice (once) (default "a-b")
      --plaintext                     serve without TLS, a|b
  -c, --calls int                     calls (default 3)
  -h, --help                          help for it
`)
	require.Equal(t, []manifests.Flag{
		{Name: "tls-secret", Value: "[namespace/]name", Default: "a-b", Does: "a Secret; twice (once)"},
		{Name: "plaintext", Does: "serve without TLS, a|b"},
		{Name: "calls", Value: "int", Default: "3", Does: "calls"},
	}, flags)
	require.Equal(t, "| flag | default | what it is |\n|---|---|---|\n"+
		"| `--tls-secret [namespace/]name` | `a-b` | a Secret; twice (once) |\n"+
		"| `--plaintext` |  | serve without TLS, a\\|b |\n"+
		"| `--calls int` | `3` | calls |\n", manifests.Table(flags))
}
