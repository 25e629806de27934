package shard

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

// recheck is when a worker that could not decide, or could not start yet, checks again. Nearly always, an event or the worker
// that leaves last comes first.
const recheck = 2 * time.Second

// Reconciler wraps a reconciler of one kind so that it runs only for objects that belong to this shard and are not draining, and
// so that drains are acknowledged. [NewManager] does this for the controllers that are added to it; wrap by hand those of which it cannot see the
// reconciler, and in tests. If the controller of an object is of another declared kind, the object also waits for the drain of its controller, and that
// drain waits for the object. The same applies to the controller's controller, and so on.
//
// obj is an empty object of one of [Options].Kinds. The client is read only in tests, where the shard has no manager.
//
// The wrapper uses nothing from the cache before the API server has confirmed it once in the term: the first reconcile of a
// kind lists the shard's objects of that kind.
//
// The inner reconciler is also called for an object that it has worked on and that was deleted; see NotFound in the package
// documentation. Its results and errors are passed on. If the wrapper cannot decide yet, the object is reconciled again a little
// later.
func (s *Shard) Reconciler(c client.Client, obj client.Object, inner reconcile.Reconciler) reconcile.Reconciler {
	return newReconciler(s.wrap(s.kindOf(c, obj)), inner, requested)
}

// view returns the assignment of an object; nil stands for an absent object.
func (s *Shard) view(obj metav1.Object) view {
	if obj == nil {
		return view{}
	}

	return view{
		version: obj.GetResourceVersion(), owned: s.owns(obj), draining: s.draining(obj),
		next: contract.NextShard(obj.GetLabels()[s.drainKey]),
	}
}

// work calls the function if this process may work on the object, and acknowledges drains before and after.
func (w *wrapped) work(ctx context.Context, name types.NamespacedName, inner workFunc) (result reconcile.Result, err error) {
	if w.kind.err != nil {
		return reconcile.Result{}, reconcile.TerminalError(w.kind.err) //nolint:wrapcheck // it is wrapped
	}

	m, _ := ctx.Value(markKey{}).(mark)
	v := &visit{shard: w.shard, controller: w.controllerOf(m), began: w.shard.term.clock.Now()}

	ctx, end, err := w.shard.term.begin(ctx)
	if err != nil {
		v.refused(run, err)
		return later(err)
	}
	defer end()

	w.shard.progress.begins(v)
	defer func() {
		if result, err = v.leave(context.WithoutCancel(ctx), result, err); v.pending {
			w.shard.drains.again(v.keys...)
		}
		w.shard.progress.ends(v)
	}()

	may, err := v.enter(ctx, w.kind, name)
	v.refused(may, err)

	switch {
	case err != nil:
		return later(err)
	case may == run:
		return w.try(ctx, v, inner)
	case may == absent:
		return w.absent(ctx, name, inner)
	case may == drained || may == unclear:
		w.unseen(ctx, name, v.unseen)

		return reconcile.Result{RequeueAfter: recheck}, nil
	default:
		w.depart(name)

		return reconcile.Result{}, nil
	}
}

// later returns the result of a reconcile that could not begin. If it only has to wait, this is not an error.
func later(err error) (reconcile.Result, error) {
	holdOff, retry := holdOffError(0), retryError(0)
	switch {
	case errors.As(err, &holdOff):
		return reconcile.Result{RequeueAfter: time.Duration(holdOff)}, nil
	case errors.As(err, &retry):
		return reconcile.Result{RequeueAfter: max(time.Duration(retry), time.Millisecond)}, nil
	default:
		return reconcile.Result{}, err
	}
}

// workFunc is what a controller does for one object. Its results and errors are passed on.
type workFunc func(ctx context.Context) (reconcile.Result, error)

// visit is one worker's stay inside an object and everything that the object follows.
type visit struct {
	shard *Shard
	keys  []objectKey
	// obj is the object as the cache shows it, and deletion is true if it is in deletion.
	obj      metav1.Object
	deletion bool
	// pending is true if an object that was to be released was not.
	pending bool
	// unseen is the link that ends at a controller which must be an object of this shard, and is not. Zero: none.
	unseen link
	// controller is that of the reconcile, and began is when it did; empty: the shard itself looks.
	controller string
	began      time.Time
}

// link is an object of the given kind with its controller.
type link struct {
	kind       string
	controller objectKey
}

// enter enters the object, and everything of wrapped kinds that it follows. It returns what may be done to the object.
func (v *visit) enter(ctx context.Context, k *kind, name types.NamespacedName) (verdict, error) {
	obj, may, err := v.look(ctx, k, name)
	v.obj, v.deletion = obj, obj != nil && obj.GetDeletionTimestamp() != nil

	for range contract.MaxDepth - 1 {
		if err != nil || may != run || obj == nil {
			return may, err
		}

		controller := metav1.GetControllerOfNoCopy(obj)
		if controller == nil || k.main {
			return run, nil
		}

		owner := v.shard.kind(schema.FromAPIVersionAndKind(controller.APIVersion, controller.Kind).GroupKind(), obj.GetNamespace())
		if owner == nil {
			return run, nil
		}

		v.unseen.kind = k.gvk.Kind
		if obj, may, err = v.enterOwner(ctx, owner, obj, controller); err != nil {
			return unclear, err
		}

		k = owner
	}

	return may, err
}

// enterOwner returns what may be done to an object of this shard, based on its controller, which it follows. The controller is
// nil if it no longer exists and the object is to be finished.
func (v *visit) enterOwner(
	ctx context.Context, owner *kind, obj metav1.Object, controller *metav1.OwnerReference,
) (metav1.Object, verdict, error) {
	key, err := owner.named(obj.GetNamespace(), controller.Name)
	if err != nil {
		return nil, unclear, err
	}

	has, may, err := v.look(ctx, owner, key)
	switch {
	case err != nil:
		return nil, unclear, err
	case may == run:
		return has, may, nil
	case (may == absent || may == gone) && obj.GetDeletionTimestamp() != nil:
		// If the owner no longer exists, nobody else will finish the deletion. One that belongs to another shard is not in the cache either.
		if has, err = owner.live(ctx, key); err != nil || has != nil && has.GetUID() == controller.UID {
			return nil, unclear, err
		}

		return nil, run, nil
	default:
		// The object follows its owner, or is garbage-collected after it, or the owner comes back into view.
		if may == absent || may == gone || may == foreign {
			v.unseen.controller = owner.key(key)
		}

		return nil, unclear, nil
	}
}

// look enters one object and judges its cached state, and that of what follows it.
func (v *visit) look(ctx context.Context, k *kind, name types.NamespacedName) (metav1.Object, verdict, error) {
	obj, may, err := v.see(ctx, k, name)
	if err != nil || may != run {
		return obj, may, err
	}

	missing, after, err := v.shard.handover.awaits(ctx, k.key(name), obj, v.shard.term.clock.Now())
	if err == nil && missing != "" {
		err = retryError(after)
	}

	if err != nil {
		return obj, unclear, err
	}

	return obj, run, nil
}

// into enters one object.
func (v *visit) into(key objectKey) {
	v.shard.guard.enter(key)
	v.shard.progress.into(v, key)
}

// refused counts the reconcile, if it does not run.
func (v *visit) refused(may verdict, err error) {
	v.shard.progress.refused(v.shard.progress.reconciles, v.controller, reasonOf(may, v.unseen, err))
}

// see enters one object and judges its cached state, if that is as new as the term.
func (v *visit) see(ctx context.Context, k *kind, name types.NamespacedName) (metav1.Object, verdict, error) {
	if err := k.inventory.prepare(ctx); err != nil {
		return nil, unclear, err
	}

	key := k.key(name)
	v.into(key)

	obj, err := k.read(ctx, name)
	if err != nil {
		return nil, unclear, err
	}

	cached := v.shard.view(obj)
	if cached.owned || cached.version == "" { // nothing is done with objects of other shards anyway
		confirmed, err := k.inventory.confirm(ctx, name, cached)
		if err == nil && !confirmed {
			log.FromContext(ctx).V(1).Info("Waiting until the cache shows the object as it was in this term", "kind", k.gvk.Kind, "object", name, "cachedVersion", cached.version)
		}

		if err != nil || !confirmed {
			return obj, unclear, err
		}
	}

	may := v.shard.guard.judge(key, cached)
	if may != run {
		v.shard.handover.forget(key)
	}

	if may == absent || may == gone || may == foreign {
		v.shard.poison.forget(key)
	}

	return obj, may, nil
}

// leave leaves every object that was entered, acknowledges the drains that waited for this, and adds the outcome to the result of
// the reconcile. The context is not that of the reconcile.
func (v *visit) leave(ctx context.Context, result reconcile.Result, err error) (reconcile.Result, error) {
	for _, key := range v.keys {
		asked, acknowledge := v.shard.guard.leave(key)
		if !acknowledge {
			continue
		}

		done, ackErr := v.shard.acknowledge(ctx, key, asked)
		v.pending = v.pending || !done

		switch {
		case apierrors.IsConflict(ackErr):
			// The object has changed meanwhile; its event leads here again.
			if result.RequeueAfter == 0 || result.RequeueAfter > recheck {
				result.RequeueAfter = recheck
			}
		case ackErr != nil && err != nil:
			// The error of the drain comes first, because the other one may be terminal.
			err = fmt.Errorf("%w (after the reconcile failed: %v)", ackErr, err) //nolint:errorlint // see above
		case ackErr != nil:
			err = ackErr
		case done && key == v.keys[0]:
			result = reconcile.Result{} // it is released: the next event says what comes
		}
	}

	if err != nil {
		result = reconcile.Result{}
	}

	return result, err
}
