package membership

import (
	"maps"
	"slices"
	"sync"
	"time"
	"unique"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/hashring"
	"github.com/clusterring/clusterring/services/internal/lease"
)

// ringsKept is how many tables an Index shares between the views that it creates.
const ringsKept = 128

// Index keeps the current view of every ring. It is safe for concurrent use; create it with [NewIndex].
//
// A renewal, which is nearly every event, costs a comparison. Any other change of a Lease drops the view of its ring,
// and the next call of [Index.View] creates a new one: a burst of changes costs one view.
type Index struct {
	cache *hashring.Cache

	mu          sync.RWMutex
	leases      map[types.NamespacedName]string // the ring of each Lease
	rings       map[string]*members             // only rings that have a Lease
	rules       map[string]Rules                // only rings that have some
	subscribers []func(ring string)
	batches     int             // how many are running
	batched     map[string]bool // the rings that have changed since the first batch began
}

// members are the Leases of one ring, and their view unless something has changed since it was created.
type members struct {
	leases map[types.NamespacedName]facts
	view   *View
}

// facts are the content of a Lease except its name. There may be tens of thousands.
type facts struct {
	uid      types.UID
	holder   string
	created  int64
	acquired int64
	duration time.Duration
	stopping bool
	pod      string
	label    string
	watches  string
	holdsOff bool
}

// shard returns what a Lease alone determines; judge adds what depends on others.
func (f facts) shard(id types.NamespacedName) Shard {
	return Shard{
		Namespace: id.Namespace, Name: id.Name, UID: f.uid, Holder: f.holder, Created: f.created, Acquired: f.acquired,
		Duration: f.duration,
		Stopping: f.stopping, Pod: f.pod, Label: f.label, Watches: f.watches, HoldsOff: f.holdsOff,
	}
}

// factsOf returns the facts about a Lease.
func factsOf(l *coordinationv1.Lease) facts {
	record := lease.RecordOf(l)

	return facts{
		uid: l.UID, holder: record.Holder, created: created(l), acquired: acquired(l), duration: record.Duration,
		stopping: record.HeldBy(l.Name) && lease.Stopping(l),
		pod:      lease.Pod(l),
		label:    unique.Make(lease.ShardLabel(l)).Value(),
		watches:  unique.Make(lease.Namespaces(l)).Value(),
		holdsOff: l.Annotations[contract.AnnotationHoldOff] != "",
	}
}

// NewIndex returns an index without Leases.
func NewIndex() *Index {
	return &Index{
		cache:  hashring.NewCache(ringsKept),
		leases: map[types.NamespacedName]string{},
		rings:  map[string]*members{},

		rules:   map[string]Rules{},
		batched: map[string]bool{},
	}
}

// Upsert records the current state of a Lease. If the Lease has no ring label, it is forgotten. If its label has
// changed, it moves from its old ring to the new one. The index neither keeps nor changes the Lease.
func (x *Index) Upsert(l *coordinationv1.Lease) {
	// Strings that thousands of Leases share are stored once.
	id := types.NamespacedName{Namespace: unique.Make(l.Namespace).Value(), Name: l.Name}

	ring := unique.Make(l.Labels[contract.LabelClusterRing]).Value()
	if ring == "" {
		x.Delete(id)
		return
	}

	now := factsOf(l)
	if now.holder == id.Name {
		now.holder = id.Name
	}
	x.notify(x.put(id, ring, now))
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
	if x.rule(ring, rules) {
		x.notify([]string{ring})
	}
}

func (x *Index) rule(ring string, rules Rules) (changed bool) {
	x.mu.Lock()
	defer x.mu.Unlock()

	if x.rules[ring].equal(rules) {
		return false
	}

	if rules.equal(Rules{}) {
		delete(x.rules, ring)
	} else {
		rules.Namespaces = slices.Clone(rules.Namespaces)
		x.rules[ring] = rules
	}

	m, known := x.rings[ring]
	if known {
		m.view = nil
	}

	return known
}

// Delete forgets the Lease with the given name, if it is known.
func (x *Index) Delete(id types.NamespacedName) {
	x.mu.Lock()

	ring, known := x.leases[id]
	if known {
		x.remove(id, ring)
	}
	x.mu.Unlock()

	if known {
		x.notify([]string{ring})
	}
}

// Retain forgets every Lease for which keep returns false: after a list of all Leases, those that it does not contain.
// keep is called with a lock held and must not call the index.
func (x *Index) Retain(keep func(id types.NamespacedName) bool) {
	changed := map[string]bool{}
	x.mu.Lock()
	for id, ring := range x.leases {
		if !keep(id) {
			x.remove(id, ring)
			changed[ring] = true
		}
	}
	x.mu.Unlock()
	x.notify(slices.Sorted(maps.Keys(changed)))
}

// View returns the current view of a ring. It is never nil. A ring without Leases, known or not, has no shards.
func (x *Index) View(ringName string) *View {
	x.mu.RLock()
	m, ok := x.rings[ringName]

	var view *View
	if ok {
		view = m.view
	}

	rules := x.rules[ringName]
	x.mu.RUnlock()

	if !ok {
		return newView(ringName, rules, nil, x.cache)
	}

	if view != nil {
		return view
	}

	return x.refresh(ringName)
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

// put stores what is known about a Lease and returns the rings whose view has changed.
func (x *Index) put(id types.NamespacedName, ring string, now facts) (changed []string) {
	x.mu.Lock()
	defer x.mu.Unlock()

	before, known := x.leases[id]
	if known && before == ring && x.rings[ring].leases[id] == now {
		return nil
	}

	if known && before != ring {
		x.remove(id, before)
		changed = append(changed, before)
	}

	m, ok := x.rings[ring]
	if !ok {
		m = &members{leases: map[types.NamespacedName]facts{}}
		x.rings[ring] = m
	}

	x.leases[id] = ring
	m.leases[id], m.view = now, nil

	return append(changed, ring)
}

// remove forgets a known Lease of the given ring. The caller holds mu.
func (x *Index) remove(id types.NamespacedName, ring string) {
	delete(x.leases, id)
	m := x.rings[ring]
	delete(m.leases, id)

	m.view = nil
	if len(m.leases) == 0 {
		delete(x.rings, ring)
	}
}

// refresh creates the view of a ring, unless another goroutine has done so meanwhile.
func (x *Index) refresh(ringName string) *View {
	x.mu.Lock()
	defer x.mu.Unlock()

	m, ok := x.rings[ringName]
	if !ok {
		return newView(ringName, x.rules[ringName], nil, x.cache)
	}

	if m.view == nil {
		shards := make([]Shard, 0, len(m.leases))
		for id, f := range m.leases {
			shards = append(shards, f.shard(id))
		}

		m.view = newView(ringName, x.rules[ringName], shards, x.cache)
	}

	return m.view
}

// Batch calls a function that reports many Leases. Subscribers are notified of each changed ring once, when the
// function has returned, so that no views and tables are created for the sets in between.
func (x *Index) Batch(report func()) {
	x.mu.Lock()
	x.batches++

	x.mu.Unlock()
	defer x.endBatch()
	report()
}

func (x *Index) endBatch() {
	x.mu.Lock()

	var changed []string
	if x.batches--; x.batches == 0 {
		changed = slices.Sorted(maps.Keys(x.batched))
		clear(x.batched)
	}
	x.mu.Unlock()
	x.notify(changed)
}

func (x *Index) notify(rings []string) {
	if len(rings) == 0 {
		return
	}

	for _, changed := range x.toTell(rings) {
		for _, name := range rings {
			changed(name)
		}
	}
}

// toTell returns the subscribers to notify of changed rings now: none during a batch, which notifies later.
func (x *Index) toTell(rings []string) []func(ring string) {
	x.mu.Lock()
	defer x.mu.Unlock()

	if x.batches == 0 {
		return slices.Clone(x.subscribers)
	}

	for _, name := range rings {
		x.batched[name] = true
	}

	return nil
}
