package membership

import (
	"maps"
	"slices"
	"sync"
	"unique"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/hashring"
)

// ringsKept is how many tables an Index shares between the views that it creates.
const ringsKept = 128

// Index keeps the current view of every ring. It is safe for concurrent use; create it with [NewIndex].
//
// A renewal, which is nearly every event, costs a comparison. Any other change of a Lease drops the view of its ring,
// and the next call of [Index.View] creates a new one: a burst of changes costs one view.
type Index struct {
	cache *hashring.Cache

	mu          sync.Mutex
	leases      map[types.NamespacedName]string // the ring of each Lease
	rings       map[string]*members             // only rings that have a Lease
	rules       map[string]Rules                // only rings that have some
	subscribers []func(ring string)
}

// members are the Leases of one ring, and their view unless something has changed since it was created.
type members struct {
	leases map[types.NamespacedName]Shard
	view   *View
}

// NewIndex returns an index without Leases.
func NewIndex() *Index {
	return &Index{
		cache:  hashring.NewCache(ringsKept),
		leases: map[types.NamespacedName]string{},
		rings:  map[string]*members{},
		rules:  map[string]Rules{},
	}
}

// Upsert records the current state of a Lease. If the Lease has no ring label, it is forgotten. If its label has
// changed, it moves from its old ring to the new one. The index neither keeps nor changes the Lease.
func (x *Index) Upsert(l *coordinationv1.Lease) {
	now := shardOf(l)

	x.mu.Lock()
	changed := x.put(now, l.Labels[contract.LabelClusterRing])
	x.mu.Unlock()

	x.notify(changed...)
}

// Replace records the state of all Leases, and forgets all others. Subscribers are notified of each changed ring once,
// so that no views and tables are created for the sets in between.
func (x *Index) Replace(all []*coordinationv1.Lease) {
	changed, there := sets.New[string](), sets.New[types.NamespacedName]()

	x.mu.Lock()

	for _, l := range all {
		changed.Insert(x.put(shardOf(l), l.Labels[contract.LabelClusterRing])...)
		there.Insert(types.NamespacedName{Namespace: l.Namespace, Name: l.Name})
	}

	for id := range x.leases {
		if !there.Has(id) {
			changed.Insert(x.remove(id)...)
		}
	}

	x.mu.Unlock()
	x.notify(sets.List(changed)...)
}

// ViewOf returns the current view of a ring, with the rules of its spec. View returns the same until ViewOf or Rule is
// called again.
func (x *Index) ViewOf(ring *v1alpha1.ClusterRing) *View {
	x.Rule(ring.Name, RulesOf(ring))

	return x.View(ring.Name)
}

// Rule sets the rules of a ring. Call it with none for a ring that is gone. Leases in namespaces that do not count are
// kept, and count as soon as their namespace does.
func (x *Index) Rule(ring string, rules Rules) {
	x.mu.Lock()

	m, known := x.rings[ring]
	if known = known && !x.rules[ring].equal(rules); known {
		m.view = nil
	}

	if rules.equal(Rules{}) {
		delete(x.rules, ring)
	} else {
		rules.Namespaces = slices.Clone(rules.Namespaces)
		x.rules[ring] = rules
	}

	x.mu.Unlock()

	if known {
		x.notify(ring)
	}
}

// Delete forgets the Lease with the given name, if it is known.
func (x *Index) Delete(id types.NamespacedName) {
	x.mu.Lock()
	changed := x.remove(id)
	x.mu.Unlock()

	x.notify(changed...)
}

// View returns the current view of a ring. It is never nil. A ring without Leases, known or not, has no shards.
func (x *Index) View(ringName string) *View {
	x.mu.Lock()
	defer x.mu.Unlock()

	m, ok := x.rings[ringName]

	switch {
	case !ok:
		return newView(ringName, x.rules[ringName], nil, x.cache)
	case m.view == nil:
		m.view = newView(ringName, x.rules[ringName], slices.Collect(maps.Values(m.leases)), x.cache)
	}

	return m.view
}

// Subscribe registers a function that is called with the name of every ring whose view has changed. It is called after
// the change, so View returns the new view or a newer one. It runs on the goroutine that reported the Lease, without a
// lock held, and should return quickly. Calls may be concurrent, and several calls may see the same view. A renewal
// causes no call.
func (x *Index) Subscribe(changed func(ring string)) {
	x.mu.Lock()
	defer x.mu.Unlock()

	x.subscribers = append(x.subscribers, changed)
}

// put stores what is known about a Lease and returns the rings whose view has changed. The caller holds mu.
func (x *Index) put(now Shard, ring string) (changed []string) {
	id := types.NamespacedName{Namespace: now.Namespace, Name: now.Name}
	ring = unique.Make(ring).Value()

	before, known := x.leases[id]
	if known && before == ring && x.rings[ring].leases[id] == now {
		return nil
	}

	if before != ring {
		changed = x.remove(id)
	}

	if ring == "" {
		return changed
	}

	m, ok := x.rings[ring]
	if !ok {
		m = &members{leases: map[types.NamespacedName]Shard{}}
		x.rings[ring] = m
	}

	x.leases[id] = ring
	m.leases[id], m.view = now, nil

	return append(changed, ring)
}

// remove forgets a Lease, if it is known, and returns the ring whose view has changed. The caller holds mu.
func (x *Index) remove(id types.NamespacedName) (changed []string) {
	ring, known := x.leases[id]
	if !known {
		return nil
	}

	delete(x.leases, id)
	m := x.rings[ring]
	delete(m.leases, id)

	m.view = nil
	if len(m.leases) == 0 {
		delete(x.rings, ring)
	}

	return []string{ring}
}

func (x *Index) notify(rings ...string) {
	x.mu.Lock()
	subscribers := slices.Clone(x.subscribers)
	x.mu.Unlock()

	for _, changed := range subscribers {
		for _, name := range rings {
			changed(name)
		}
	}
}
