package command_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/clusterring/clusterring/tools/load/internal/command"
	"github.com/clusterring/clusterring/tools/load/internal/result"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

// TestMain makes this binary play the no-op webhook, as the tool itself does.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "noop-webhook" {
		os.Exit(command.Main())
	}
	goleak.VerifyTestMain(m)
}

// load runs the command line and returns what it printed.
func load(t *testing.T, args ...string) (out, progress string, err error) {
	t.Helper()

	var stdout, stderr bytes.Buffer

	c := command.New()
	c.SetArgs(args)
	c.SetOut(&stdout)
	c.SetErr(&stderr)
	err = c.ExecuteContext(t.Context())

	return stdout.String(), stderr.String(), err
}

func TestMistakes(t *testing.T) {
	for want, args := range map[string][]string{
		`--scale must be small, full, or million, not "huge"`:              {"run", "--scale=huge"},
		`invalid argument "-1" for "--rounds" flag`:                        {"run", "--rounds=-1"},
		`--only: error parsing regexp`:                                     {"run", "--only=("},
		`no measurement has an id that matches "^nothing$"; the ids are [`: {"run", "--only=^nothing$"},
		`missing in`:                             {"run", "--bin-dir=" + t.TempDir(), "--assets=x", "--only=admission"},
		`open the figures of an earlier run`:     {"report", "missing.json"},
		`unknown flag: --x; see load run --help`: {"run", "--x"},
		`--sharder: there is no "mine"`:          {"evaluate", "--sharder=mine"},
		`if any flags in the group [kubeconfig sharder] are set none of the others can be`: {
			"evaluate", "--sharder=static", "--kubeconfig=x"},
		`x: no such file`: {"evaluate", "--kubeconfig=x"},
	} {
		_, _, err := load(t, args...)
		require.ErrorContains(t, err, want)
	}
}

// TestRun measures a little of admission, with everything real: control plane, services, no-op webhook, profiles.
func TestRun(t *testing.T) {
	bin, out := t.TempDir(), t.TempDir()

	build := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", bin+"/")
	for _, service := range []string{"assigner", "leasemonitor", "rebalancer", "ringquery"} {
		build.Args = append(build.Args, fmt.Sprintf("./services/%s/cmd/%s", service, service))
	}

	build.Dir = localplane.Root()
	text, err := build.CombinedOutput()
	require.NoError(t, err, string(text))

	table, progress, err := load(t, "run", "--bin-dir="+bin, "--out="+out,
		"--only=^admission-(cpu-50|creates-50|foreign-calls)$", "--rounds=1", "--profile")
	require.NoError(t, err, progress)
	require.Contains(t, table, "assigner CPU per admission, 50 shards")

	data, err := os.ReadFile(filepath.Join(out, "report.json")) //nolint:gosec // a file of the test
	require.NoError(t, err)

	var report result.Report
	require.NoError(t, json.Unmarshal(data, &report))
	require.Len(t, report.Rows, 3)

	for _, row := range report.Rows {
		if row.ID == "admission-foreign-calls" {
			require.Zero(t, row.Values[0])
			continue
		}
		require.Positive(t, row.Values[0])
		require.Positive(t, row.Floor[0])
	}

	profiles, err := filepath.Glob(filepath.Join(out, "pprof", "admission-assigner-*"))
	require.NoError(t, err)
	require.NotEmpty(t, profiles)
}
