package membership

import (
	"slices"
	"sync"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/ring"
)

// ringsKept is how many hash rings an Index shares between the views that it makes.
const ringsKept = 128

// Index keeps the current view of every ring. It is safe for concurrent use; create it with [NewIndex].
//
// A renewal, which is nearly every event, costs a comparison. Anything else that happens to a Lease drops the view of
// its ring, and the next call of [Index.View] makes a new one: a burst of changes costs one view.
type Index struct {
	cache *ring.Cache

	mu          sync.RWMutex
	leases      map[types.NamespacedName]membership
	rings       map[string]*members // only rings that have a Lease
	subscribers []func(ring string)
}

// membership is what the index knows of one Lease.
type membership struct {
	ring  string
	shard Shard
}

// members are the Leases of one ring, and their view, unless something has changed since it was made.
type members struct {
	leases map[types.NamespacedName]Shard
	view   *View
}

// NewIndex returns an index without Leases.
func NewIndex() *Index {
	return &Index{
		cache:  ring.NewCache(ringsKept),
		leases: map[types.NamespacedName]membership{},
		rings:  map[string]*members{},
	}
}

// Upsert takes note of a Lease as it is now. One without a ring's label is forgotten, one whose label has changed
// leaves its old ring for the new. The Lease is neither kept nor changed.
func (x *Index) Upsert(l *coordinationv1.Lease) {
	id := types.NamespacedName{Namespace: l.Namespace, Name: l.Name}
	name := l.Labels[v1alpha1.LabelClusterRing]
	if name == "" {
		x.Delete(id)
		return
	}
	now := membership{ring: name, shard: shardOf(l)}
	x.notify(x.put(id, now))
}

// Delete forgets the Lease of the given name, if it is known.
func (x *Index) Delete(id types.NamespacedName) {
	x.mu.Lock()
	before, known := x.leases[id]
	if known {
		x.remove(id, before)
	}
	x.mu.Unlock()
	if known {
		x.notify([]string{before.ring})
	}
}

// View returns the current view of a ring. That of a ring without Leases, known or not, has no shards; it is never nil.
func (x *Index) View(ringName string) *View {
	x.mu.RLock()
	m, ok := x.rings[ringName]
	var view *View
	if ok {
		view = m.view
	}
	x.mu.RUnlock()
	if !ok {
		return newView(ringName, nil, x.cache)
	}
	if view != nil {
		return view
	}
	return x.refresh(ringName)
}

// Subscribe registers a function to be called with the name of every ring whose view has changed. It is called after
// the change, so that View answers with the new view or a newer one, by the goroutine that reported the Lease and with
// no lock held; it should return quickly. Calls may come concurrently, and more than one may see the same view. There
// is no call for a renewal.
func (x *Index) Subscribe(changed func(ring string)) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.subscribers = append(x.subscribers, changed)
}

// put stores what is known of a Lease and returns the rings whose view that changed.
func (x *Index) put(id types.NamespacedName, now membership) (changed []string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	before, known := x.leases[id]
	if known && before == now {
		return nil
	}
	if known && before.ring != now.ring {
		x.remove(id, before)
		changed = append(changed, before.ring)
	}
	x.leases[id] = now
	m, ok := x.rings[now.ring]
	if !ok {
		m = &members{leases: map[types.NamespacedName]Shard{}}
		x.rings[now.ring] = m
	}
	m.leases[id], m.view = now.shard, nil
	return append(changed, now.ring)
}

// remove forgets a Lease that is known. The caller holds mu.
func (x *Index) remove(id types.NamespacedName, known membership) {
	delete(x.leases, id)
	m := x.rings[known.ring]
	delete(m.leases, id)
	m.view = nil
	if len(m.leases) == 0 {
		delete(x.rings, known.ring)
	}
}

// refresh makes the view of a ring if nobody else has meanwhile.
func (x *Index) refresh(ringName string) *View {
	x.mu.Lock()
	defer x.mu.Unlock()
	m, ok := x.rings[ringName]
	if !ok {
		return newView(ringName, nil, x.cache)
	}
	if m.view == nil {
		shards := make([]Shard, 0, len(m.leases))
		for _, s := range m.leases {
			shards = append(shards, s)
		}
		m.view = newView(ringName, shards, x.cache)
	}
	return m.view
}

func (x *Index) notify(rings []string) {
	if len(rings) == 0 {
		return
	}
	x.mu.RLock()
	subscribers := slices.Clone(x.subscribers)
	x.mu.RUnlock()
	for _, name := range rings {
		for _, changed := range subscribers {
			changed(name)
		}
	}
}
