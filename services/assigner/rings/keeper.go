package rings

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/assigner/admission"
	"github.com/clusterring/clusterring/services/internal/kit"
	"github.com/clusterring/clusterring/services/internal/resources"
)

const (
	// A missing resource is looked for again after firstRetry, then after twice that time, up to lastRetry.
	firstRetry = 100 * time.Millisecond
	lastRetry  = 5 * time.Second
	// lookAgain is how often resources that were found are looked for: what the API server serves may change, and nobody says
	// so without the right to watch CustomResourceDefinitions and API services. It costs a few requests for each ring.
	lookAgain = 15 * time.Second
	// mapperAge is how long discovery is trusted: rings that appear together share it.
	mapperAge = time.Second
	// workers bounds the rings that wait for discovery at a time.
	workers = 4
)

// Keeper fills a [Store] from ClusterRings. Its exported fields must be set.
type Keeper struct {
	// Client reads ClusterRings, from a cache.
	Client client.Reader
	// Store is what the keeper fills.
	Store *Store
	// Discover returns a RESTMapper that knows nothing yet. A mapper that has been used may not notice that a group got
	// another version.
	Discover func() (meta.RESTMapper, error)
	Clock    clock.PassiveClock

	mu       sync.Mutex
	mapper   meta.RESTMapper
	mapperAt time.Time
	known    map[string]resolution
}

// resolution is what is known of a ring's resources, and when to look again.
type resolution struct {
	uid        types.UID
	generation int64
	set        *resources.Set
	attempts   int
	due        time.Time
}

// SetupWith adds the controllers that fill the store to a manager. They run in every replica.
func (k *Keeper) SetupWith(mgr manager.Manager) error {
	err := builder.ControllerManagedBy(mgr).
		Named("rings").
		For(&v1alpha1.ClusterRing{}).
		WithOptions(controller.Options{
			NeedLeaderElection: new(false), MaxConcurrentReconciles: workers, RateLimiter: kit.RateLimiter[reconcile.Request](),
		}).
		Complete(k)
	if err != nil {
		return fmt.Errorf("follow ClusterRings: %w", err)
	}

	err = builder.ControllerManagedBy(mgr).
		Named("shards").
		WatchesRawSource(source.Func(k.changedViews)).
		WithOptions(controller.Options{NeedLeaderElection: new(false), RateLimiter: kit.RateLimiter[reconcile.Request]()}).
		Complete(reconcile.Func(k.refresh))
	if err != nil {
		return fmt.Errorf("follow the shards of rings: %w", err)
	}

	return nil
}

// changedViews queues every ring whose view changes. Rings that were published before it was called are queued too, as
// their views may have changed meanwhile.
func (k *Keeper) changedViews(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	add := func(ring string) { queue.Add(reconcile.Request{NamespacedName: types.NamespacedName{Name: ring}}) }
	k.Store.index.Subscribe(add)

	for ring := range *k.Store.published.Load() {
		add(ring)
	}

	return nil
}

func (k *Keeper) refresh(_ context.Context, req reconcile.Request) (reconcile.Result, error) {
	k.Store.refresh(req.Name)

	return reconcile.Result{}, nil
}

// Reconcile publishes what a ring is now, and asks to be called when it is time to look for the ring's resources again.
func (k *Keeper) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	ring := &v1alpha1.ClusterRing{}
	if err := k.Client.Get(ctx, req.NamespacedName, ring); apierrors.IsNotFound(err) {
		k.mu.Lock()
		delete(k.known, req.Name)
		k.mu.Unlock()
		k.Store.remove(req.Name)

		return reconcile.Result{}, nil
	} else if err != nil {
		return reconcile.Result{}, fmt.Errorf("read ring %s: %w", req.Name, err)
	}

	set, retry, err := k.resolve(ring)
	if err != nil {
		return reconcile.Result{}, err
	}

	fingerprint := ""
	if a := ring.Status.Assignment; a != nil {
		fingerprint = a.Fingerprint
	}

	k.Store.put(admission.Facts{
		Name:                ring.Name,
		Resources:           set,
		AssignedFingerprint: fingerprint,
		Deleting:            !ring.DeletionTimestamp.IsZero(),
	}, ring.UID, ring.Generation)

	return reconcile.Result{RequeueAfter: retry}, nil
}

// resolve returns a ring's resources, and after what time to look again. It asks the API server only for a new spec, or when
// it is time to look again.
func (k *Keeper) resolve(ring *v1alpha1.ClusterRing) (*resources.Set, time.Duration, error) {
	now := k.Clock.Now()

	k.mu.Lock()
	before := k.known[ring.Name]
	k.mu.Unlock()

	if before.uid != ring.UID || before.generation != ring.Generation {
		before = resolution{uid: ring.UID, generation: ring.Generation}
	}

	if before.set != nil && now.Before(before.due) {
		return before.set, before.wait(now), nil
	}

	mapper, err := k.freshMapper(now)
	if err != nil {
		return nil, 0, err
	}

	after := before.next(resources.Resolve(mapper, ring.Spec), now)

	k.mu.Lock()
	defer k.mu.Unlock()

	if k.known == nil {
		k.known = map[string]resolution{}
	}

	k.known[ring.Name] = after

	return after.set, after.wait(now), nil
}

// next returns the resolution after one more attempt.
func (r resolution) next(found *resources.Set, now time.Time) resolution {
	failed := func(m resources.Missing) bool { return !meta.IsNoMatchError(m.Err) }

	switch {
	case r.set == nil:
		r.set = found
	case slices.ContainsFunc(found.Missing(), failed):
		// Discovery failed. What was found before is still there, as far as anybody knows.
	case !found.Equal(r.set):
		r.set, r.attempts = found, 0
	}

	if len(r.set.Missing()) == 0 {
		r.due, r.attempts = now.Add(lookAgain), 0
		return r
	}

	r.due = now.Add(min(firstRetry<<min(r.attempts, 10), lastRetry))
	r.attempts++

	return r
}

// wait returns how long it is until the resources are looked for again.
func (r resolution) wait(now time.Time) time.Duration { return max(r.due.Sub(now), time.Millisecond) }

func (k *Keeper) freshMapper(now time.Time) (meta.RESTMapper, error) {
	k.mu.Lock()
	defer k.mu.Unlock()

	if k.mapper != nil && now.Sub(k.mapperAt) < mapperAge {
		return k.mapper, nil
	}

	mapper, err := k.Discover()
	if err != nil {
		return nil, fmt.Errorf("prepare discovery of resources: %w", err)
	}

	k.mapper, k.mapperAt = mapper, now

	return mapper, nil
}

// Ready is a readiness check: it fails until every ring that exists has been published with its shards. After it has
// passed once it does not fail again.
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
