// Package fleet maintains the desired number of ships of each Fleet.
//
// It counts the ships in its cache and creates ships with generated names, as the controllers of ReplicaSets, Jobs, and
// most other resources that scale do. For such a controller, a ship that its cache does not show yet is a missing ship.
// The controller waits for the ships that it has created itself. The shard library ensures that the controller sees the
// ships that another shard has created before it counts for the first time.
package fleet

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/tools/example/api/v1alpha1"
)

const (
	// OwnerIndex is the index of the cache in which the Reconciler finds the ships of a fleet; see [ByOwner].
	OwnerIndex = ".metadata.controller.uid"

	// afterConflict is when a fleet that has just changed is reconciled again, if its event does not come first.
	afterConflict = 100 * time.Millisecond
	// atOnce is how many ships one reconcile creates at most, so that none takes long.
	atOnce = 50
)

// ByOwner returns the key of a Ship in the [OwnerIndex].
func ByOwner(obj client.Object) []string {
	if owner := metav1.GetControllerOf(obj); owner != nil {
		return []string{string(owner.UID)}
	}

	return nil
}

// Reconciler reconciles Fleets. Create it with [New]. It may be used by several goroutines.
type Reconciler struct {
	client client.Client

	mu sync.Mutex
	// made are the ships that were created and have not been seen.
	made map[types.NamespacedName]expected
}

// expected are ships of one fleet, by name.
type expected struct {
	fleet types.UID
	ships sets.Set[string]
}

// New returns a reconciler with a client that writes, and reads from the shard's cache, which has the [OwnerIndex].
func New(c client.Client) *Reconciler {
	return &Reconciler{client: c, made: map[types.NamespacedName]expected{}}
}

// Reconcile implements reconcile.Reconciler.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	fleet := &v1alpha1.Fleet{}

	err := r.client.Get(ctx, req.NamespacedName, fleet)
	if apierrors.IsNotFound(err) || err == nil && !fleet.DeletionTimestamp.IsZero() {
		r.forget(req.NamespacedName) // the fleet is another shard's, or its ships are garbage-collected with it
		return reconcile.Result{}, nil
	}

	if err != nil {
		return reconcile.Result{}, fmt.Errorf("read the fleet: %w", err)
	}

	ships := &v1alpha1.ShipList{}
	if err := r.client.List(ctx, ships, client.InNamespace(fleet.Namespace),
		client.MatchingFields{OwnerIndex: string(fleet.UID)}); err != nil {
		return reconcile.Result{}, fmt.Errorf("count the ships: %w", err)
	}

	if !r.seen(fleet, ships.Items) {
		return reconcile.Result{}, nil // the missing ship comes with an event
	}

	err = r.scale(ctx, fleet, ships.Items)
	if err == nil {
		err = r.writeStatus(ctx, fleet, len(ships.Items))
	}

	if apierrors.IsConflict(err) {
		return reconcile.Result{RequeueAfter: afterConflict}, nil
	}

	return reconcile.Result{}, err
}

// scale creates missing ships, or deletes the youngest of the excess ships.
func (r *Reconciler) scale(ctx context.Context, fleet *v1alpha1.Fleet, ships []v1alpha1.Ship) error {
	for range min(int(fleet.Spec.Replicas)-len(ships), atOnce) {
		ship := &v1alpha1.Ship{ObjectMeta: metav1.ObjectMeta{Namespace: fleet.Namespace, GenerateName: fleet.Name + "-"}}
		if err := controllerutil.SetControllerReference(fleet, ship, r.client.Scheme()); err != nil {
			return fmt.Errorf("set the fleet as the ship's controller: %w", err)
		}

		if err := r.client.Create(ctx, ship); err != nil {
			return fmt.Errorf("create a ship: %w", err)
		}

		r.expect(fleet, ship.Name)
	}

	slices.SortFunc(ships, func(a, b v1alpha1.Ship) int {
		return cmp.Or(b.CreationTimestamp.Compare(a.CreationTimestamp.Time), cmp.Compare(b.Name, a.Name))
	})

	for i := range max(len(ships)-int(fleet.Spec.Replicas), 0) {
		err := client.IgnoreNotFound(r.client.Delete(ctx, &ships[i], client.Preconditions{UID: &ships[i].UID}))
		if err != nil {
			return fmt.Errorf("delete a ship: %w", err)
		}
	}

	return nil
}

// seen reports whether the cache shows all ships that were created here.
func (r *Reconciler) seen(fleet *v1alpha1.Fleet, ships []v1alpha1.Ship) bool {
	key := client.ObjectKeyFromObject(fleet)

	r.mu.Lock()
	defer r.mu.Unlock()

	made := r.made[key]
	for i := range ships {
		made.ships.Delete(ships[i].Name)
	}

	if made.fleet == fleet.UID && made.ships.Len() > 0 {
		return false
	}

	delete(r.made, key)

	return true
}

func (r *Reconciler) expect(fleet *v1alpha1.Fleet, ship string) {
	key := client.ObjectKeyFromObject(fleet)

	r.mu.Lock()
	defer r.mu.Unlock()

	if r.made[key].fleet != fleet.UID {
		r.made[key] = expected{fleet: fleet.UID, ships: sets.New[string]()}
	}

	r.made[key].ships.Insert(ship)
}

func (r *Reconciler) forget(key types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()

	delete(r.made, key)
}

func (r *Reconciler) writeStatus(ctx context.Context, fleet *v1alpha1.Fleet, ships int) error {
	before := fleet.DeepCopy()

	fleet.Status.ObservedGeneration = fleet.Generation
	fleet.Status.Ships = int32(ships) //nolint:gosec // at most some thousand

	if fleet.Status == before.Status {
		return nil
	}

	if err := r.client.Status().Patch(ctx, fleet,
		client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("write the status: %w", err)
	}

	return nil
}
