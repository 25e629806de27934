// Package rings keeps the current state of every ring, which admission requests read without a lock.
//
// It reads ClusterRings, the membership index, and the API server's discovery. It makes no decisions and writes
// nothing. Every replica keeps its own [Store], which a controller that runs without leader election fills.
package rings

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
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

// Store contains the state of all rings. Reads take no lock and see one consistent state of a ring. Its exported fields
// must be set.
//
// # Invariants
//
//  1. A published state is never changed, only replaced.
//  2. The view in a ring's state is never older than one that was published before for the same ring: the controller
//     works on one ring at a time in one goroutine only.
type Store struct {
	// Client reads ClusterRings, from a cache.
	Client client.Reader
	// Index has the shards of rings.
	Index *membership.Index
	// Resources resolves the resources of rings.
	Resources *resources.Resolver
	// Forget is called with the name of a ring that is gone.
	Forget func(ring string)

	published sync.Map // *admission.Ring, by the name of the ring
	synced    atomic.Bool
}

// Ring returns the state of a ring, or nil if no ring has that name.
func (s *Store) Ring(name string) *admission.Ring {
	found, _ := s.published.Load(name)
	ring, _ := found.(*admission.Ring)

	return ring
}

// Synced reports whether every ring that existed when the process started has been published.
func (s *Store) Synced() bool { return s.synced.Load() }

// workers bounds the rings that are published at a time.
const workers = 4

// SetupWithManager adds the controller that fills the store to a manager. It runs in every replica.
func (s *Store) SetupWithManager(mgr manager.Manager) error {
	err := builder.ControllerManagedBy(mgr).
		Named("rings").
		For(&v1alpha1.ClusterRing{}).
		Watches(&v1alpha1.ClusterRing{}, clusterring.Rivals(s.Client)).
		WatchesRawSource(clusterring.Source(s.Client, func(_ context.Context, one func(ring string), all func()) error {
			s.Index.Subscribe(one)
			s.Resources.Subscribe(all) // the API server serves something else than before

			return nil
		})).
		WithOptions(controller.Options{
			NeedLeaderElection: new(false), MaxConcurrentReconciles: workers, RateLimiter: kit.RateLimiter[reconcile.Request](),
		}).
		Complete(s)
	if err != nil {
		return fmt.Errorf("follow ClusterRings: %w", err)
	}

	return nil
}

// Reconcile publishes the current state of a ring. It fails while it is not known what the API server serves.
func (s *Store) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	ring := &v1alpha1.ClusterRing{}
	// What is published keeps the ring of the cache, which nobody changes.
	if err := s.Client.Get(ctx, req.NamespacedName, ring, client.UnsafeDisableDeepCopy); apierrors.IsNotFound(err) {
		s.Index.Rule(req.Name, membership.Rules{})

		if _, known := s.published.LoadAndDelete(req.Name); known {
			s.Forget(req.Name)
		}

		return reconcile.Result{}, nil
	} else if err != nil {
		return reconcile.Result{}, fmt.Errorf("read ring %s: %w", req.Name, err)
	}

	if err := s.Resources.Await(ctx); err != nil {
		return reconcile.Result{}, fmt.Errorf("determine the resources of ring %s: %w", req.Name, err)
	}

	holder, err := clusterring.FindOlder(ctx, s.Client, ring)
	if err != nil {
		return reconcile.Result{}, err
	}

	refusal := ""
	if holder != "" {
		refusal = clusterring.LabelInUse(ring, holder)
	} else if _, err := ring.Spec.ObjectRequirements(); err != nil {
		refusal = err.Error()
	}

	s.published.Store(ring.Name, admission.NewRing(admission.Facts{
		Ring: ring, Refusal: refusal, Resources: s.Resources.Resolve(ring.Spec), View: s.Index.ViewOf(ring),
	}))

	return reconcile.Result{}, nil
}

// Ready is a readiness check: it fails until every existing ring has been published with its shards. After it has
// passed once, it does not fail again.
func (s *Store) Ready(r *http.Request) error {
	if s.Synced() {
		return nil
	}

	list := &v1alpha1.ClusterRingList{}
	if err := s.Client.List(r.Context(), list); err != nil {
		return fmt.Errorf("list ClusterRings: %w", err)
	}

	for i := range list.Items {
		name := list.Items[i].Name
		if ring := s.Ring(name); ring == nil ||
			ring.Facts().View.Fingerprint() != s.Index.View(name).Fingerprint() {
			return errors.New("ring " + name + " has not been read yet")
		}
	}

	s.synced.Store(true)

	return nil
}
