package rings

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"

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

	mu    sync.Mutex
	known map[string]resolution
}

// resolution is what is known of a ring's resources.
type resolution struct {
	uid        types.UID
	generation int64
	set        *resources.Set
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
		Complete(reconcile.Func(k.refresh))
	if err != nil {
		return fmt.Errorf("follow the shards of rings: %w", err)
	}

	return nil
}

// changedViews requests every ring whose view changes. It requests rings that were published before, too, as their views
// may have changed meanwhile.
func (k *Keeper) changedViews(_ context.Context, one func(ring string), _ func()) error {
	k.Store.index.Subscribe(one)

	for ring := range *k.Store.published.Load() {
		one(ring)
	}

	return nil
}

func (k *Keeper) refresh(_ context.Context, req reconcile.Request) (reconcile.Result, error) {
	k.Store.refresh(req.Name)

	return reconcile.Result{}, nil
}

// Reconcile publishes the current state of a ring. It fails while it is not known what the API server serves.
func (k *Keeper) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	ring := &v1alpha1.ClusterRing{}
	if err := k.Client.Get(ctx, req.NamespacedName, ring); apierrors.IsNotFound(err) {
		k.mu.Lock()
		delete(k.known, req.Name)
		k.mu.Unlock()
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

// resolve returns a ring's resources: the same value as before, if nothing of them has changed.
func (k *Keeper) resolve(ring *v1alpha1.ClusterRing) *resources.Set {
	k.mu.Lock()
	defer k.mu.Unlock()

	if k.known == nil {
		k.known = map[string]resolution{}
	}

	found := k.Resources.Resolve(ring.Spec)
	before := k.known[ring.Name]

	if before.set != nil && before.uid == ring.UID && before.generation == ring.Generation &&
		before.set.Equal(found) && before.set.MissingMessage() == found.MissingMessage() {
		return before.set
	}

	k.known[ring.Name] = resolution{uid: ring.UID, generation: ring.Generation, set: found}

	return found
}

// Ready is a readiness check: it fails until every existing ring has been published with its shards. After it has passed once, it
// does not fail again.
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
