// Package rings keeps the current state of every ring, which admission requests read without a lock.
//
// It reads ClusterRings, the membership index, and the API server's discovery. It makes no decisions and writes
// nothing. Every replica keeps its own [Store]. Two controllers that run without leader election fill it: one follows
// ClusterRings and determines their resources, and the other follows the shards, so that slow discovery never delays
// changes of shards.
package rings

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/admission"
	"github.com/clusterring/clusterring/services/internal/clusterring"
	"github.com/clusterring/clusterring/services/internal/kit"
	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/services/internal/resources"
)

// Store contains the state of all rings. Reads take no lock and see one consistent state of a ring. Create it with
// [NewStore].
//
// # Invariants
//
//  1. A published state is never changed, only replaced.
//  2. The view in a ring's state is never older than one that was published before for the same ring.
type Store struct {
	index *membership.Index
	// forget is called with the name of a ring that is gone.
	forget func(ring string)

	published sync.Map // *entry, by the name of the ring
	synced    atomic.Bool

	mu          sync.Mutex // held while a state is replaced
	subscribers []func(ring string)
}

// entry is the state of one ring.
type entry struct {
	ring *admission.Ring
	// uid and generation say which spec the state was made from.
	uid        types.UID
	generation int64
}

// NewStore returns an empty store that takes the rings' shards from index. It calls forget, without a lock held, for
// every ring that is gone; forget may be nil.
func NewStore(index *membership.Index, forget func(ring string)) *Store {
	return &Store{index: index, forget: forget}
}

// entry returns the state of a ring, an empty one if no ring has that name.
func (s *Store) entry(name string) *entry {
	if found, ok := s.published.Load(name); ok {
		return found.(*entry) //nolint:forcetypeassert // it contains nothing else
	}

	return &entry{}
}

// Ring returns the state of a ring, or nil if no ring has that name.
func (s *Store) Ring(name string) *admission.Ring { return s.entry(name).ring }

// Resources returns the resources of a ring, or nil if they are not known yet for this generation of the ring's spec.
// Subscribers are notified when they become known.
func (s *Store) Resources(name string, uid types.UID, generation int64) *resources.Set {
	e := s.entry(name)
	if e.ring == nil || e.uid != uid || e.generation != generation {
		return nil
	}

	return e.ring.Facts().Resources
}

// Synced reports whether every ring that existed when the process started has been published.
func (s *Store) Synced() bool { return s.synced.Load() }

// Subscribe registers a function that is called, without a lock held, with the name of every ring whose resources
// became known, changed, or disappeared. It should return quickly. Calls may be concurrent.
func (s *Store) Subscribe(changed func(ring string)) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.subscribers = append(s.subscribers, changed)
}

// put publishes a ring's state. The view of the facts is filled in.
func (s *Store) put(f admission.Facts, uid types.UID, generation int64) {
	s.mu.Lock()

	before := s.entry(f.Name)
	// Under the lock, so that no older view can replace a newer one.
	f.View = s.index.View(f.Name)
	s.published.Store(f.Name, &entry{ring: admission.NewRing(f), uid: uid, generation: generation})
	s.mu.Unlock()

	if before.ring == nil || before.uid != uid || before.generation != generation ||
		before.ring.Facts().Resources != f.Resources {
		s.tell(f.Name)
	}
}

// tell calls the subscribers.
func (s *Store) tell(ring string) {
	s.mu.Lock()
	subscribers := s.subscribers
	s.mu.Unlock()

	for _, changed := range subscribers {
		changed(ring)
	}
}

// refresh publishes a known ring with its current view.
func (s *Store) refresh(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	before := s.entry(name)
	if before.ring == nil {
		return
	}

	f := before.ring.Facts()
	f.View = s.index.View(name)
	s.published.Store(name, &entry{ring: admission.NewRing(f), uid: before.uid, generation: before.generation})
}

// remove forgets a ring.
func (s *Store) remove(name string) {
	s.mu.Lock()
	_, known := s.published.LoadAndDelete(name)
	s.mu.Unlock()

	if !known {
		return
	}

	if s.forget != nil {
		s.forget(name)
	}

	s.tell(name)
}

// current reports whether a ring is published with the shards that the index knows now.
func (s *Store) current(name string, uid types.UID) bool {
	e := s.entry(name)

	return e.ring != nil && e.uid == uid && e.ring.Facts().View.Fingerprint() == s.index.View(name).Fingerprint()
}

// workers bounds the rings that are published at a time.
const workers = 4

// Keeper fills a [Store] with the state of ClusterRings. Its exported fields must be set.
type Keeper struct {
	// Client reads ClusterRings, from a cache.
	Client client.Reader
	// Store is the store to fill.
	Store *Store
	// Resources resolves the resources of rings.
	Resources *resources.Resolver
}

// SetupWithManager adds the controllers that fill the store to a manager. They run in every replica.
func (k *Keeper) SetupWithManager(mgr manager.Manager) error {
	err := builder.ControllerManagedBy(mgr).
		Named("rings").
		For(&v1alpha1.ClusterRing{}).
		Watches(&v1alpha1.ClusterRing{}, clusterring.Rivals(k.Client)).
		WatchesRawSource(clusterring.Source(k.Client, func(_ context.Context, _ func(ring string), all func()) error {
			k.Resources.Subscribe(all) // the API server serves something else than before
			return nil
		})).
		WithOptions(controller.Options{
			NeedLeaderElection: new(false), MaxConcurrentReconciles: workers, RateLimiter: kit.RateLimiter[reconcile.Request](),
		}).
		Complete(k)
	if err != nil {
		return fmt.Errorf("follow ClusterRings: %w", err)
	}

	err = builder.ControllerManagedBy(mgr).
		Named("shards").
		WatchesRawSource(clusterring.Source(k.Client, k.changedViews)).
		WithOptions(controller.Options{NeedLeaderElection: new(false), RateLimiter: kit.RateLimiter[reconcile.Request]()}).
		Complete(reconcile.Func(func(_ context.Context, req reconcile.Request) (reconcile.Result, error) {
			k.Store.refresh(req.Name)

			return reconcile.Result{}, nil
		}))
	if err != nil {
		return fmt.Errorf("follow the shards of rings: %w", err)
	}

	return nil
}

// changedViews requests every ring whose view changes. It requests rings that were published before, too, as their
// views may have changed meanwhile.
func (k *Keeper) changedViews(_ context.Context, one func(ring string), _ func()) error {
	k.Store.index.Subscribe(one)

	k.Store.published.Range(func(ring, _ any) bool {
		one(ring.(string)) //nolint:forcetypeassert // it contains nothing else
		return true
	})

	return nil
}

// Reconcile publishes the current state of a ring. It fails while it is not known what the API server serves.
func (k *Keeper) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	ring := &v1alpha1.ClusterRing{}
	if err := k.Client.Get(ctx, req.NamespacedName, ring); apierrors.IsNotFound(err) {
		k.Store.remove(req.Name)
		k.Store.index.Rule(req.Name, membership.Rules{})

		return reconcile.Result{}, nil
	} else if err != nil {
		return reconcile.Result{}, fmt.Errorf("read ring %s: %w", req.Name, err)
	}

	if err := k.Resources.Await(ctx); err != nil {
		return reconcile.Result{}, fmt.Errorf("determine the resources of ring %s: %w", req.Name, err)
	}

	holder, err := clusterring.FindOlder(ctx, k.Client, ring)
	if err != nil {
		return reconcile.Result{}, err
	}

	refusal := ""
	if holder != "" {
		refusal = clusterring.LabelInUse(ring, holder)
	} else if _, err := ring.Spec.ObjectRequirements(); err != nil {
		refusal = err.Error()
	}

	set := k.resolve(ring)

	fingerprint := ""
	if a := ring.Status.Assignment; a != nil {
		fingerprint = a.Fingerprint
	}

	k.Store.index.Rule(ring.Name, membership.RulesOf(ring))
	k.Store.put(admission.Facts{
		Name:                 ring.Name,
		ShardLabel:           ring.Spec.ShardLabel,
		Refusal:              refusal,
		Resources:            set,
		Recorded:             resources.Recorded(ring.Status.Assignment),
		AssignedFingerprint:  fingerprint,
		ResourceFingerprints: resources.Fingerprints(ring.Status.Assignment),
		Rekeying:             !set.KeysRecorded(ring.Status.Assignment),
		Deleting:             !ring.DeletionTimestamp.IsZero(),
	}, ring.UID, ring.Generation)

	return reconcile.Result{}, nil
}

// resolve returns a ring's resources: the value that is published, if nothing of them has changed.
func (k *Keeper) resolve(ring *v1alpha1.ClusterRing) *resources.Set {
	found := k.Resources.Resolve(ring.Spec)

	before := k.Store.Resources(ring.Name, ring.UID, ring.Generation)
	if before != nil && before.Equal(found) && before.MissingMessage() == found.MissingMessage() {
		return before
	}

	return found
}

// Ready is a readiness check: it fails until every existing ring has been published with its shards. After it has
// passed once, it does not fail again.
func (k *Keeper) Ready(r *http.Request) error {
	if k.Store.Synced() {
		return nil
	}

	list := &v1alpha1.ClusterRingList{}
	if err := k.Client.List(r.Context(), list); err != nil {
		return fmt.Errorf("list ClusterRings: %w", err)
	}

	for i := range list.Items {
		if !k.Store.current(list.Items[i].Name, list.Items[i].UID) {
			return errors.New("ring " + list.Items[i].Name + " has not been read yet")
		}
	}

	k.Store.synced.Store(true)

	return nil
}
