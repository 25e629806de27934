package transport_test

import (
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/services/ringquery/transport"
)

func TestFlags(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want string // empty: fine
	}{
		"plaintext":    {[]string{"--plaintext"}, ""},
		"secret":       {nil, ""},
		"secret, said": {[]string{"--ca-mode=secret", "--tls-secret=a", "--ca-config-map=b"}, ""},
		"files":        {[]string{"--ca-mode=file", "--tls-cert-file=c", "--tls-private-key-file=k"}, ""},
		"no such mode": {[]string{"--ca-mode=cert-manager", "--tls-cert-file=c"},
			`--ca-mode must be secret or file, not "cert-manager"`},
		"files and not": {[]string{"--plaintext", "--tls-cert-file=c"}, "--plaintext excludes --ca-mode file"},
		"files of a secret": {[]string{"--tls-cert-file=c", "--tls-private-key-file=k"},
			"--tls-cert-file and --tls-private-key-file require --ca-mode file"},
		"no key":        {[]string{"--ca-mode=file", "--tls-cert-file=c"}, "are required with --ca-mode file"},
		"no secret":     {[]string{"--tls-secret=b/a"}, `--tls-secret "b/a" is no name of a Secret`},
		"no config map": {[]string{"--ca-config-map="}, `--ca-config-map "" is not a valid name of a ConfigMap`},
		"lifetimes": {[]string{"--tls-cert-lifetime=2h", "--tls-ca-lifetime=4h"},
			"at least three times --tls-cert-lifetime (2h0m0s)"},
		"no streams": {[]string{"--plaintext", "--grpc-max-total-streams=0"}, "at least 1"},
		"no time":    {[]string{"--plaintext", "--grpc-call-timeout=1ms"}, "at least 10ms"},
		"no address": {[]string{"--plaintext", "--grpc-bind-address=0"}, "--grpc-bind-address must be set"},
	} {
		t.Run(name, func(t *testing.T) {
			options, flags := transport.Options{}, pflag.NewFlagSet("", pflag.ContinueOnError)
			options.AddFlags(flags)
			require.NoError(t, flags.Parse(c.args))

			err := options.Validate()
			if c.want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, c.want)
			}
		})
	}
}
