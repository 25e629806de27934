package model

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/services/internal/takeover"
)

// The model stores only a few bits about the rebalancer's guard. For any sequence of observations and queries, the
// guard answers as the model does.
func TestGuardIsAsModelled(t *testing.T) {
	const (
		steps = 5

		pass   = 0          // D passes
		ask    = 1          // ask about the current Lease
		see    = 2          // the cache shows the current Lease
		change = 3          // the Lease becomes absent, held, released, taken, or that of a shard that stops
		kinds  = change + 5 // of actions
	)

	d, err := decide(Scope{Shards: 1})
	require.NoError(t, err)

	sequences := 1
	for range steps {
		sequences *= kinds
	}

	for sequence := range sequences {
		now, api := moment(epoch), server{}
		guarded := takeover.New(ringName, &api, &now)
		modelled := shard{}

		for rest, i := sequence, 0; i < steps; rest, i = rest/kinds, i+1 {
			switch action := rest % kinds; action {
			case pass:
				now = moment(time.Time(now).Add(duration))
				modelled.guard, modelled.trust = modelled.guard.grow(), false
			case see:
				guarded.Observe(membership.NewView(ringName, api.leases, nil))

				modelled.guard, modelled.trust = modelled.guard.see(modelled.lease), modelled.trust && modelled.lease != held
			case ask:
				v, err := guarded.MayTake(t.Context(), shardName(1))
				require.NoError(t, err)

				allowed := modelled.trust || d.mayTake[modelled.guard][modelled.lease]
				require.Equal(t, v.Allowed, allowed, "sequence %d, step %d", sequence, i)

				if !modelled.trust {
					modelled.guard = modelled.guard.see(modelled.lease)
				}

				modelled.trust = allowed
			default:
				stops := action == kinds-1
				if modelled.lease = lease(action - change); stops {
					modelled.lease = held
				}

				api.leases = leasesOf([]lease{modelled.lease})
				if stops {
					announce(api.leases[0])
				}
			}
		}
	}
}
