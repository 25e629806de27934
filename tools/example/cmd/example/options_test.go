package main

import (
	"bytes"
	"os"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/tools/example/history"
)

func TestHelp(t *testing.T) {
	var out bytes.Buffer

	_, err := parse([]string{"--help"}, &out)
	require.ErrorIs(t, err, pflag.ErrHelp)

	for _, flag := range []string{"--ring", "--shard-name", "--lease-namespace", "--history-file", "--work-duration"} {
		require.Contains(t, out.String(), flag)
	}
}

func TestBadInput(t *testing.T) {
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
