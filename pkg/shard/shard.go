package shard

import (
	"os"
	"sync"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

// Shard is this process as a member of a ring. [NewManager] and [New] create it. It is safe for concurrent use. A process may contain several
// shards, one per ring, each with its own manager.
type Shard struct {
	options  Options
	name     atomic.Pointer[string]
	shardKey string
	drainKey string
	guard    *guard
	term     *term
	stores   *stores
	handover *handovers
	drains   *drains
	progress *progress
	poison   *poison

	mu    sync.RWMutex
	kinds map[schema.GroupKind][]*kind
	// wrappers are the reconcilers and handlers that were wrapped.
	wrappers map[schema.GroupKind][]*wrapped
	// mains are the kinds whose objects follow no controller.
	mains map[schema.GroupKind]bool
	// inventories are the inventories of the manager's caches.
	inventories map[form]*inventory
	// lock is the shard's Lease; nil before the shard has a name.
	lock atomic.Pointer[lock]
	// standsBy is true while this process waits for a slot, and could take one.
	standsBy atomic.Bool
	// released counts the objects that were released.
	released atomic.Int64
	// namespaces are those in which the shard watches its kinds; none for all.
	namespaces []string
	// live reads metadata from the API server; nil until the shard knows how to reach it.
	live metadata.Interface
}

// New returns the shard that the options describe, with defaults filled in. It does not access the API server. The error names
// every option that is missing or wrong. A shard with [Options].Slots has no name before it holds one of them.
func New(options Options) (*Shard, error) {
	options, err := options.complete(os.Hostname, mounted)
	if err != nil {
		return nil, err
	}

	return newShard(options), nil
}

// newShard returns the shard of options that are complete.
func newShard(options Options) *Shard {
	keys := contract.LabelKeysOf(options.Ring, options.ShardLabel)
	s := &Shard{
		options:  options,
		shardKey: keys.Shard,
		drainKey: keys.Drain,
		guard:    newGuard(),
		progress: newProgress(),
		poison:   newPoison(ringKeys(keys)),
		term:     newTerm(options, clock.RealClock{}),
		kinds:    map[schema.GroupKind][]*kind{},
		wrappers: map[schema.GroupKind][]*wrapped{},
		mains:    map[schema.GroupKind]bool{},

		inventories: map[form]*inventory{},
	}
	s.become(options.Name)
	s.stores = newStores(ringKeys(keys), s.liveReader)
	s.handover = newHandovers(options.Ring, s.stores, s.Selector)
	s.drains = &drains{shard: s}
	s.stores.observe = s.drains.watch
	s.term.own = s.drains.run

	return s
}

// Name returns the shard's name; empty as long as it waits for a slot.
func (s *Shard) Name() string { return *s.name.Load() }

// become gives the shard its name. It is called once more when it has a slot.
func (s *Shard) become(name string) { s.name.Store(&name) }

// Ring returns the name of the shard's ring.
func (s *Shard) Ring() string { return s.options.Ring }

// Namespace returns the namespace of the shard's Lease.
func (s *Shard) Namespace() string { return s.options.Namespace }

// LabelKeys returns the keys by which the ring labels and annotates objects.
func (s *Shard) LabelKeys() contract.LabelKeys {
	return contract.LabelKeysOf(s.options.Ring, s.options.ShardLabel)
}

// Selector returns the label selector that matches the objects of this shard, including draining ones; none as long as the shard waits for a slot.
func (s *Shard) Selector() labels.Selector {
	name := s.Name()
	if name == "" {
		return labels.Nothing()
	}

	return labels.SelectorFromSet(labels.Set{s.shardKey: name})
}

// Owns reports whether the object, as it is given, carries this shard's label, draining or not.
func (s *Shard) Owns(obj client.Object) bool {
	return s.owns(obj)
}

func (s *Shard) owns(obj metav1.Object) bool {
	name := s.Name()

	return name != "" && obj.GetLabels()[s.shardKey] == name
}

// draining reports whether this shard is asked to release the object: the shard owns the object, and the object carries the drain
// label with any value.
func (s *Shard) draining(obj metav1.Object) bool {
	_, drain := obj.GetLabels()[s.drainKey]

	return drain && s.owns(obj)
}
