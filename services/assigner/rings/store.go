// Package rings keeps the current state of every ring, which admission requests read without a lock.
//
// It reads ClusterRings, the membership index, and the API server's discovery. It makes no decisions and writes nothing. Every
// replica keeps its own [Store]. Two controllers that run without leader election fill it: one follows ClusterRings and determines
// their resources, and the other follows the shards, so that slow discovery never delays changes of shards.
package rings

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/types"

	"github.com/clusterring/clusterring/services/internal/admission"
	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/services/internal/resources"
)

// Store contains the state of all rings. Reads take no lock and see one consistent state of a ring. Create it with [NewStore].
//
// # Invariants
//
//  1. A published state is never changed, only replaced.
//  2. The view in a ring's state is never older than one that was published before for the same ring.
type Store struct {
	index *membership.Index
	// forget is called with the name of a ring that is gone.
	forget func(ring string)

	published atomic.Pointer[map[string]*entry]
	synced    atomic.Bool

	mu          sync.Mutex // held by whoever replaces published
	subscribers []func(ring string)
}

// entry is the state of one ring.
type entry struct {
	ring *admission.Ring
	// uid and generation say which spec the state was made from.
	uid        types.UID
	generation int64
}

// NewStore returns an empty store that takes the rings' shards from index. It calls forget, without a lock held, for every ring
// that is gone; forget may be nil.
func NewStore(index *membership.Index, forget func(ring string)) *Store {
	s := &Store{index: index, forget: forget}
	s.published.Store(&map[string]*entry{})

	return s
}

// Ring returns the state of a ring, or nil if no ring has that name.
func (s *Store) Ring(name string) *admission.Ring {
	if e, ok := (*s.published.Load())[name]; ok {
		return e.ring
	}

	return nil
}

// Resources returns the resources of a ring, or nil if they are not known yet for this generation of the ring's spec. Subscribers
// are notified when they become known.
func (s *Store) Resources(name string, uid types.UID, generation int64) *resources.Set {
	e, ok := (*s.published.Load())[name]
	if !ok || e.uid != uid || e.generation != generation {
		return nil
	}

	return e.ring.Facts().Resources
}

// Synced reports whether every ring that existed when the process started has been published.
func (s *Store) Synced() bool { return s.synced.Load() }

// Subscribe registers a function that is called, without a lock held, with the name of every ring whose resources became known,
// changed, or disappeared. It should return quickly. Calls may be concurrent.
func (s *Store) Subscribe(changed func(ring string)) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.subscribers = append(s.subscribers, changed)
}

// put publishes a ring's state. The view of the facts is filled in.
func (s *Store) put(f admission.Facts, uid types.UID, generation int64) {
	s.mu.Lock()

	before := (*s.published.Load())[f.Name]
	// Under the lock, so that no older view can replace a newer one.
	f.View = s.index.View(f.Name)
	s.replace(f.Name, &entry{ring: admission.NewRing(f), uid: uid, generation: generation})

	subscribers := slices.Clone(s.subscribers)
	s.mu.Unlock()

	if before != nil && before.uid == uid && before.generation == generation && before.ring.Facts().Resources == f.Resources {
		return
	}

	for _, changed := range subscribers {
		changed(f.Name)
	}
}

// refresh publishes a known ring with its current view.
func (s *Store) refresh(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	before, ok := (*s.published.Load())[name]
	if !ok {
		return
	}

	f := before.ring.Facts()
	f.View = s.index.View(name)
	s.replace(name, &entry{ring: admission.NewRing(f), uid: before.uid, generation: before.generation})
}

// remove forgets a ring.
func (s *Store) remove(name string) {
	s.mu.Lock()
	_, known := (*s.published.Load())[name]
	s.replace(name, nil)
	subscribers := slices.Clone(s.subscribers)
	s.mu.Unlock()

	if !known {
		return
	}

	if s.forget != nil {
		s.forget(name)
	}

	for _, changed := range subscribers {
		changed(name)
	}
}

// replace publishes a new map in which one entry differs; nil removes it. The caller holds mu.
func (s *Store) replace(name string, e *entry) {
	next := maps.Clone(*s.published.Load())
	if e == nil {
		delete(next, name)
	} else {
		next[name] = e
	}

	s.published.Store(&next)
}

// current reports whether a ring is published with the shards that the index knows now.
func (s *Store) current(name string, uid types.UID) bool {
	e, ok := (*s.published.Load())[name]

	return ok && e.uid == uid && e.ring.Facts().View.Fingerprint() == s.index.View(name).Fingerprint()
}
