package model

import (
	"testing"

	"github.com/stretchr/testify/require"
	"gotest.tools/v3/golden"
)

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

			golden.Assert(t, violation.Trace, name+".txt")
		})
	}
}
