package model

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "rewrite testdata")

// People read traces; testdata contains one of each form.
func TestTraces(t *testing.T) {
	for name, s := range map[string]Scope{
		"no-live-read": {Shards: 2, Faulty: 1, Time: true, Mutation: NoLiveRead, Forgiven: only(OneWorker)},
		"ack-inside":   {Shards: 2, Faulty: 1, Child: true, Mutation: AckInside, Forgiven: only(OneWorker)},
		"no-takeover":  {Shards: 2, Faulty: 1, Time: true, Mutation: NoTakeover},
	} {
		t.Run(name, func(t *testing.T) {
			_, violation := explored(t, s)
			require.NotNil(t, violation)

			golden := filepath.Join("testdata", name+".txt")
			if *update {
				require.NoError(t, os.WriteFile(golden, []byte(violation.Trace), 0o600))
			}

			want, err := os.ReadFile(golden)
			require.NoError(t, err)
			require.Equal(t, string(want), violation.Trace)
		})
	}
}
