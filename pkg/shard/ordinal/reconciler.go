package ordinal

import (
	"context"
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Owns reports whether the object belongs to this process. The error is that the scheme of the manager does not know the kind.
func (p *Process) Owns(obj client.Object) (bool, error) {
	gvk, err := apiutil.GVKForObject(obj, p.scheme)
	if err != nil {
		return false, fmt.Errorf("determine the kind of %T: %w", obj, err)
	}

	return p.share().owns(p.options.Hash(gvk.GroupKind(), obj)), nil
}

// Predicate returns a predicate that passes an event of an object of this process if all given predicates pass it, and no event of another object.
// It saves queueing: [Process.Reconciler] checks again. Use it for the kind of the controller, not for those that it owns.
func (p *Process) Predicate(inner ...predicate.Predicate) predicate.Predicate {
	all := predicate.And(inner...)
	mine := func(obj client.Object) bool {
		owns, err := p.Owns(obj)
		return owns || err != nil // the reconciler reports the error
	}

	return predicate.Funcs{
		CreateFunc:  func(e event.CreateEvent) bool { return mine(e.Object) && all.Create(e) },
		UpdateFunc:  func(e event.UpdateEvent) bool { return mine(e.ObjectNew) && all.Update(e) },
		DeleteFunc:  func(e event.DeleteEvent) bool { return mine(e.Object) && all.Delete(e) },
		GenericFunc: func(e event.GenericEvent) bool { return mine(e.Object) && all.Generic(e) },
	}
}

// Reconciler wraps a reconciler so that requests for objects of other processes are dropped. It gets the client of the manager and an empty object
// of the kind that the controller watches, in the form that it watches. Wrap each reconciler of the process that shares its objects.
//
// The inner reconciler is called for an object that does not exist only if it has run for the object. This costs the memory of a name and a number
// for each object of the process.
func (p *Process) Reconciler(c client.Client, obj client.Object, inner reconcile.Reconciler) reconcile.Reconciler {
	r := &reconciler{process: p, inner: inner, cache: withoutLiveReads(c), empty: obj, ran: map[types.NamespacedName]uint64{}}

	gvk, err := c.GroupVersionKindFor(obj)
	if err != nil {
		r.err = fmt.Errorf("determine the kind of %T: %w", obj, err)
	}

	r.kind = gvk.GroupKind()

	return r
}

type reconciler struct {
	process *Process
	inner   reconcile.Reconciler
	cache   client.Reader
	empty   client.Object
	kind    schema.GroupKind
	err     error

	mu  sync.Mutex
	ran map[types.NamespacedName]uint64 // the hashes of the objects that the inner reconciler has run for
}

// Reconcile implements reconcile.Reconciler. It reconciles an object that was deleted until the inner reconciler has no error and does not ask for
// another call.
func (r *reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	if r.err != nil {
		return reconcile.Result{}, reconcile.TerminalError(r.err) //nolint:wrapcheck // it is wrapped
	}

	obj, err := r.look(ctx, req.NamespacedName)
	if err != nil {
		return reconcile.Result{}, err
	}

	s := r.process.share()
	if !r.begin(req.NamespacedName, obj, s) {
		return reconcile.Result{}, nil // when the share changes, the source enqueues all objects of the process
	}

	result, err := r.inner.Reconcile(context.WithValue(ctx, began{}, s), req)
	if obj == nil && err == nil && result.IsZero() {
		r.forget(req.NamespacedName)
	}

	return result, err //nolint:wrapcheck // it is the controller's
}

// began is the key of the share in the context of a reconcile. What the reconcile lists follows this share to its end: a reconciler that counts the
// objects of a list must not miss some because they have changed their process since.
type began struct{}

// look returns the object, or nil if it does not exist.
func (r *reconciler) look(ctx context.Context, name types.NamespacedName) (client.Object, error) {
	obj, _ := r.empty.DeepCopyObject().(client.Object)

	err := r.cache.Get(ctx, name, obj)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // it was deleted
	}

	if err != nil {
		return nil, fmt.Errorf("read %s %s: %w", r.kind.Kind, name, err)
	}

	return obj, nil
}

// begin reports whether the inner reconciler may run, and takes note of it. It may not if the object belongs to another process, or if it does not exist
// and the inner reconciler has not run for it.
func (r *reconciler) begin(name types.NamespacedName, obj client.Object, s share) bool {
	r.mu.Lock()
	defer r.mu.Unlock()

	hash, known := r.ran[name]
	if obj != nil {
		hash, known = r.process.options.Hash(r.kind, obj), true
	}

	if !known || !s.owns(hash) {
		delete(r.ran, name)

		return false
	}

	r.ran[name] = hash

	return true
}

func (r *reconciler) forget(name types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()

	delete(r.ran, name)
}
