package sweep

import (
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/tools/faults/faultrun"
	"github.com/clusterring/clusterring/tools/faults/proxy"
)

// TestEmbedded kills the shard that is elected as the sharder, at writes of the sharder: the election and the shard's own objects both move. There are
// no services.
func TestEmbedded(t *testing.T) {
	s := theSuite(t)
	rings := []faultrun.RingSpec{{
		Name: faultrun.Ring, Namespaces: []string{faultrun.Namespace}, Shards: []string{"embedded-a", "embedded-b", "embedded-c", "embedded-d"}, Embedded: true, // their Pods have an account of their own
	}}

	type kill struct {
		phase  faultrun.Phase
		phases []faultrun.Phase
		write  string
		after  bool
	}

	kills := []kill{
		{phase: faultrun.Begin, phases: []faultrun.Phase{}, write: "PATCH clusterrings", after: true},
		{phase: faultrun.Begin, phases: []faultrun.Phase{}, write: "PATCH websites +shard -drain", after: true},
		{phase: faultrun.Join, phases: []faultrun.Phase{faultrun.Join}, write: "PATCH websites +drain +shard"},
		{phase: faultrun.Join, phases: []faultrun.Phase{faultrun.Join}, write: "PATCH clusterrings/status"},
		{phase: faultrun.Fail, phases: []faultrun.Phase{faultrun.Join, faultrun.Fail}, write: "PUT leases", after: true},
		{phase: faultrun.Delete, phases: []faultrun.Phase{}, write: "PATCH websites +drain +shard", after: true},
	}

	cases := []faultrun.Case{{Name: "no fault", Rings: rings}}
	reached := make([]atomic.Bool, len(kills))

	for i, k := range kills {
		name := "killed before " + k.write
		if k.after {
			name = "killed after " + k.write
		}

		cases = append(cases, faultrun.Case{Name: string(k.phase) + ": " + name, Rings: rings, Phases: k.phases, Prepare: func(run *faultrun.Run) {
			for _, m := range run.Members(true) {
				m.Proxy.Hook(func(write proxy.Write) proxy.Action {
					election := write.Resource == "leases" && strings.HasPrefix(write.Name, "sharder-")
					if !faultrun.BySharder(write) || election || run.Phase() != k.phase || classify(run, m, write).write != k.write || reached[i].Swap(true) {
						return proxy.Action{}
					}

					if k.after {
						return proxy.Action{Lose: true, Applied: func(proxy.Done) { _ = m.Process().Kill() }} // one that is gone will do
					}

					_ = m.Process().Kill()

					return proxy.Action{Abort: true}
				})
			}
		}})
	}

	s.run(t, cases...)

	for i, k := range kills {
		require.True(t, reached[i].Load(), "the sharder never made the write at which it is killed: %+v", k)
	}
}
