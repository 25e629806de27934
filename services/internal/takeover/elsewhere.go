package takeover

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/services/internal/lease"
)

// MayTakeIn is like [Guard.MayTake] for objects in a namespace that the shard does not watch, although it works. Each call reads its Lease: if it is
// held, and says so, no process works on these objects, by another rule:
//
//	U6  A process that announces namespaces works nowhere else. Another one of the name announces others, or none, in the write by which it takes the Lease,
//	    which is after the read, and works after the hold-off: until now + hold-off. A renewal by a process that knows neither makes the announcement void.
func (g *Guard) MayTakeIn(ctx context.Context, name, namespace string) (Verdict, error) {
	began := g.clock.Now()

	leases, err := g.list(ctx, client.MatchingFields{"metadata.name": name})
	if err != nil {
		return Verdict{}, fmt.Errorf("read the Lease of shard %s: %w", name, err)
	}

	g.mu.Lock()
	leases = g.counted(leases)
	g.mu.Unlock()

	if len(leases) == 1 && lease.RecordOf(&leases[0]).HeldBy(name) {
		wait, says := holdOff(&leases[0])
		only := lease.Namespaces(&leases[0])

		if until := began.Add(wait); says && only != "" && !slices.Contains(strings.Split(only, ","), namespace) && until.After(g.clock.Now()) {
			return Verdict{Allowed: true, Until: until}, nil
		}
	}

	return g.MayTake(ctx, name)
}
