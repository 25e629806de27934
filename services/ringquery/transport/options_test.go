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
		"plaintext":           {[]string{"--plaintext"}, ""},
		"tls":                 {[]string{"--tls-cert-file=c", "--tls-private-key-file=k"}, ""},
		"never too old":       {[]string{"--plaintext", "--grpc-max-connection-age=0"}, ""},
		"neither":             {nil, "choose how to serve: --tls-cert-file and --tls-private-key-file, --tls-secret, or --plaintext"},
		"both":                {[]string{"--plaintext", "--tls-cert-file=c", "--tls-private-key-file=k"}, "choose one"},
		"no key":              {[]string{"--tls-cert-file=c"}, "set both"},
		"no certificate":      {[]string{"--tls-private-key-file=k"}, "set both"},
		"secret":              {[]string{"--tls-secret=a"}, ""},
		"secret elsewhere":    {[]string{"--tls-secret=b/a"}, ""},
		"secret and files":    {[]string{"--tls-secret=a", "--tls-cert-file=c", "--tls-private-key-file=k"}, "choose one"},
		"secret and not":      {[]string{"--tls-secret=a", "--plaintext"}, "choose one"},
		"no secret":           {[]string{"--tls-secret=b/"}, "is no name of a Secret"},
		"secret of nowhere":   {[]string{"--tls-secret=/a"}, "is no name of a Secret"},
		"much of a secret":    {[]string{"--tls-secret=a/b/c"}, "is no name of a Secret"},
		"no streams":          {[]string{"--plaintext", "--grpc-max-total-streams=0"}, "at least 1"},
		"no time":             {[]string{"--plaintext", "--grpc-call-timeout=1ms"}, "at least 10ms"},
		"no address":          {[]string{"--plaintext", "--grpc-bind-address=0"}, "--grpc-bind-address must be set"},
		"tiny requests":       {[]string{"--plaintext", "--grpc-max-request-bytes=1"}, "at least 1024"},
		"no calls":            {[]string{"--plaintext", "--grpc-max-concurrent-streams=0"}, "at least 1"},
		"negative age":        {[]string{"--plaintext", "--grpc-max-connection-age=-1s"}, "0 or at least 1s"},
		"impatient keepalive": {[]string{"--plaintext", "--grpc-keepalive-time=1ms"}, "must be at least 1s"},
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
