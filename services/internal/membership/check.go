package membership

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/clusterring/clusterring/services/internal/invariants"
)

// check panics if an invariant of the index does not hold. The caller holds mu.
func (x *Index) check() {
	if !x.pace.Due(len(x.leases)) {
		return
	}

	n := 0

	for ring, m := range x.rings {
		n += len(m.leases)

		if len(m.leases) == 0 {
			invariants.Violated("1: ring %s is kept without a Lease", ring)
		}

		for id := range m.leases {
			if x.leases[id] != ring {
				invariants.Violated("1: Lease %s is one of ring %s, and of ring %q", id, ring, x.leases[id])
			}
		}

		m.checkView(ring)
	}

	if n != len(x.leases) {
		invariants.Violated("1: %d Leases are those of no ring", len(x.leases)-n)
	}

	if x.batches < 0 || x.batches == 0 && len(x.batched) > 0 {
		invariants.Violated("3: %d batches are under way, and %d rings wait for their end", x.batches, len(x.batched))
	}
}

// checkView checks invariant 2.
func (m *members) checkView(ring string) {
	if m.view == nil {
		return
	}

	if m.view.ringName != ring || len(m.view.shards)+m.view.ignored != len(m.leases) {
		invariants.Violated("2: the view of ring %s is that of ring %s, with %d Leases instead of %d", ring, m.view.ringName, len(m.view.shards), len(m.leases))
	}

	same := func(s Shard) bool {
		f, ok := m.leases[types.NamespacedName{Namespace: s.Namespace, Name: s.Name}]

		s.Available, s.Standby, s.Problem = false, false, "" // judge and standBy have added them

		return ok && f.shard(types.NamespacedName{Namespace: s.Namespace, Name: s.Name}) == s
	}

	if i := slices.IndexFunc(m.view.shards, func(s Shard) bool { return !same(s) }); i >= 0 {
		invariants.Violated("2: the view of ring %s has a Lease %s that is not so", ring, m.view.shards[i].Name)
	}
}
