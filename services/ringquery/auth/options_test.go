package auth_test

import (
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/services/ringquery/auth"
)

func TestFlags(t *testing.T) {
	const everywhere = ":8090"

	for name, c := range map[string]struct {
		args      []string
		plaintext bool
		address   string
		want      string // empty: fine
	}{
		"tls":                          {nil, false, everywhere, ""},
		"plaintext for all":            {[]string{"--authentication=none"}, true, everywhere, ""},
		"plaintext on loopback":        {nil, true, "127.0.0.1:8090", ""},
		"plaintext on IPv6's loopback": {nil, true, "[::1]:8090", ""},
		"plaintext on localhost":       {nil, true, "localhost:8090", ""},
		"plaintext everywhere":         {nil, true, everywhere, "in the clear"},
		"plaintext on a name":          {nil, true, "localhost.example.com:8090", "in the clear"},
		"audiences":                    {[]string{"--token-audience=a", "--token-audience=b"}, false, everywhere, ""},
		"audiences for nothing": {[]string{"--token-audience=a", "--authentication=none"}, false, everywhere,
			"choose one"},
		"audience of the API server": {[]string{"--token-audience="}, false, everywhere, ""},
		"empty audience":             {[]string{"--token-audience=a,"}, false, everywhere, "must not be empty"},
		"unknown": {[]string{"--authentication=basic"}, false, everywhere,
			`kubernetes or none, not "basic"`},
		"no cache":    {[]string{"--access-cache-ttl=0"}, false, everywhere, ""},
		"old answers": {[]string{"--access-cache-ttl=2h"}, false, everywhere, "from 0 to 1h"},
		"negative":    {[]string{"--access-cache-ttl=-1s"}, false, everywhere, "from 0 to 1h"},
	} {
		t.Run(name, func(t *testing.T) {
			options, flags := auth.Options{}, pflag.NewFlagSet("", pflag.ContinueOnError)
			options.AddFlags(flags)
			require.NoError(t, flags.Parse(c.args))

			err := options.Validate(c.plaintext, c.address)
			if c.want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, c.want)
			}
		})
	}
}
