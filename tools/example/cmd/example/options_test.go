package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/tools/testkit/history"
)

func TestHelp(t *testing.T) {
	var out bytes.Buffer

	_, err := parse([]string{"--help"}, &out)
	require.ErrorIs(t, err, pflag.ErrHelp)

	for _, flag := range []string{"--ring", "--shard-name", "--slot-names", "--shard-label", "--lease-namespace", "--history-file", "--work-duration"} {
		require.Contains(t, out.String(), flag)
	}
}

func TestBadInput(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(file, []byte(anyCluster), 0o600))
	cluster := []string{"--lease-namespace", "n", "--kubeconfig", file}

	for _, tc := range []struct {
		name string
		args []string
		want string
	}{
		{"unknown flag", []string{"--rings", "a"}, "unknown flag: --rings; see --help"},
		{"argument", []string{"a"}, `unexpected argument "a"`},
		{"concurrency", []string{"--concurrency", "0"}, "at least 1"},
		{"work", []string{"--work-duration", "-1s"}, "must not be negative"},
		{"rate", []string{"--kube-api-qps", "0"}, "must be positive"},
		{"log level", []string{"--log-level", "loud"}, "debug, info, or error"},
		{"log format", []string{"--log-format", "xml"}, "text or json"},
		{"names and slots", append(cluster, "--slots", "2", "--slot-names", "a"), "--slots and --slot-names both name the slots"},
		{"names and a name", append(cluster, "--shard-name", "b", "--slot-names", "a"), `name: remove "b"`},
		{"label", append(cluster, "--shard-label", "shard"), `shard label: "shard" is invalid`},
		{"kubeconfig", []string{"--kubeconfig", "/no/such/file"}, "/no/such/file"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o, err := parse(tc.args, &bytes.Buffer{})
			if err == nil {
				err = run(t.Context(), o)
			}
			require.ErrorContains(t, err, tc.want)
		})
	}
}

func TestExitCodes(t *testing.T) {
	require.Equal(t, 1, start([]string{"--no-such-flag"}))
	require.Equal(t, 0, start([]string{"--help"}))
}

func TestHistoryOnStandardOutput(t *testing.T) {
	file, err := history.Open("-")
	require.NoError(t, err)
	require.NoError(t, file.Close())

	_, err = os.Stdout.Write(nil)
	require.NoError(t, err, "it is still open")
}

func TestNamesFromTheEnvironment(t *testing.T) {
	t.Setenv("SHARD_NAME", "Blue")
	t.Setenv("SHARD_LABEL", "shard")

	file := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(file, []byte(anyCluster), 0o600))

	o, err := parse([]string{"--lease-namespace", "n", "--kubeconfig", file}, &bytes.Buffer{})
	require.NoError(t, err)
	err = run(t.Context(), o)
	require.ErrorContains(t, err, `slots: "Blue" is invalid`)
	require.ErrorContains(t, err, `shard label: "shard" is invalid`)

	o, err = parse([]string{"--lease-namespace", "n", "--kubeconfig", file, "--slot-names", "Green", "--shard-label", "label"}, &bytes.Buffer{})
	require.NoError(t, err)
	err = run(t.Context(), o)
	require.ErrorContains(t, err, `slots: "Green" is invalid`, "a flag counts more")
	require.ErrorContains(t, err, `shard label: "label" is invalid`)
}

// anyCluster is a kubeconfig of an API server that does not answer.
const anyCluster = `{"clusters":[{"name":"c","cluster":{"server":"https://127.0.0.1:1"}}],"contexts":[{"name":"c","context":{"cluster":"c"}}],"current-context":"c"}`
