// Package fleet keeps as many ships as each Fleet shall have.
//
// It counts them in its cache, and those that it makes have generated names: as the controllers of ReplicaSets and Jobs do, and most that
// scale something. To such a controller a ship that its cache does not show yet is one that is missing. Those that it has made itself it
// waits for; that it sees those which another shard has made before it counts for the first time is what the shard library sees to.
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

	// afterConflict is when a fleet that has just changed is looked at again, if its event does not come first.
	afterConflict = 100 * time.Millisecond
	// atOnce is how many ships one reconcile makes, so that none takes long.
	atOnce = 50
)

// ByOwner returns under what a Ship is found in the [OwnerIndex].
func ByOwner(obj client.Object) []string {
	if owner := metav1.GetControllerOf(obj); owner != nil {
		return []string{string(owner.UID)}
	}

	return nil
}

// Reconciler reconciles Fleets. Make it with [New]; it may be used by several goroutines.
type Reconciler struct {
	client client.Client

	mu sync.Mutex
	// made are the ships that were made and have not been seen.
	made map[types.NamespacedName]expected
}

// expected are ships of one fleet, by name.
type expected struct {
	fleet types.UID
	ships sets.Set[string]
}

// New returns a reconciler with a client that reads from the shard's cache, which has the [OwnerIndex], and writes.
func New(c client.Client) *Reconciler {
	return &Reconciler{client: c, made: map[types.NamespacedName]expected{}}
}

// Reconcile implements reconcile.Reconciler.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	fleet := &v1alpha1.Fleet{}

	err := r.client.Get(ctx, req.NamespacedName, fleet)
	if apierrors.IsNotFound(err) || err == nil && !fleet.DeletionTimestamp.IsZero() {
		r.forget(req.NamespacedName) // it is another shard's, or its ships are collected with it
		return reconcile.Result{}, nil
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("read the fleet: %w", err)
	}

	ships := &v1alpha1.ShipList{}
	if err := r.client.List(ctx, ships, client.InNamespace(fleet.Namespace), client.MatchingFields{OwnerIndex: string(fleet.UID)}); err != nil {
		return reconcile.Result{}, fmt.Errorf("count the ships: %w", err)
	}

	if !r.seen(fleet, ships.Items) {
		return reconcile.Result{}, nil // the ship that is missing comes with an event
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

// scale makes what is missing, or removes the youngest of what is too much.
func (r *Reconciler) scale(ctx context.Context, fleet *v1alpha1.Fleet, ships []v1alpha1.Ship) error {
	for range min(int(fleet.Spec.Replicas)-len(ships), atOnce) {
		ship := &v1alpha1.Ship{ObjectMeta: metav1.ObjectMeta{Namespace: fleet.Namespace, GenerateName: fleet.Name + "-"}}
		if err := controllerutil.SetControllerReference(fleet, ship, r.client.Scheme()); err != nil {
			return fmt.Errorf("make the fleet the ship's controller: %w", err)
		}
		if err := r.client.Create(ctx, ship); err != nil {
			return fmt.Errorf("make a ship: %w", err)
		}

		r.expect(fleet, ship.Name)
	}

	slices.SortFunc(ships, func(a, b v1alpha1.Ship) int {
		return cmp.Or(b.CreationTimestamp.Compare(a.CreationTimestamp.Time), cmp.Compare(b.Name, a.Name))
	})

	for i := range max(len(ships)-int(fleet.Spec.Replicas), 0) {
		err := client.IgnoreNotFound(r.client.Delete(ctx, &ships[i], client.Preconditions{UID: &ships[i].UID}))
		if err != nil {
			return fmt.Errorf("remove a ship: %w", err)
		}
	}

	return nil
}

// seen reports whether the cache shows all ships that were made here.
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
	fleet.Status = v1alpha1.FleetStatus{ObservedGeneration: fleet.Generation, Ships: int32(ships)} //nolint:gosec // at most some thousand
	if fleet.Status == before.Status {
		return nil
	}
	if err := r.client.Status().Patch(ctx, fleet, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("write the status: %w", err)
	}

	return nil
}
