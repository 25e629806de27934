package ordinal

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// recheck is when a request for a deleted object is looked at again that came while nobody worked.
const recheck = time.Second

// Owns reports whether the object belongs to this process by the numbers that it works with, or worked with last. The error is that the scheme of the
// manager does not know the kind.
func (p *Process) Owns(obj client.Object) (bool, error) {
	gvk, err := apiutil.GVKForObject(obj, p.scheme)
	if err != nil {
		return false, fmt.Errorf("determine the kind of %T: %w", obj, err)
	}

	s, _, _ := p.gate.now()

	return s.owns(p.options.Hash(gvk.GroupKind(), obj)), nil
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
	r := &reconciler{process: p, inner: inner, ran: map[types.NamespacedName]uint64{}}

	gvk, err := c.GroupVersionKindFor(obj)
	if err != nil {
		r.err = fmt.Errorf("determine the kind of %T: %w", obj, err)
	}

	empty, _ := obj.DeepCopyObject().(client.Object)
	cached := withoutLiveReads(c)
	r.kind = gvk.GroupKind()
	r.get = func(ctx context.Context, name types.NamespacedName) (client.Object, error) {
		read, _ := empty.DeepCopyObject().(client.Object)

		return read, cached.Get(ctx, name, read)
	}

	return r
}

type reconciler struct {
	process *Process
	inner   reconcile.Reconciler
	kind    schema.GroupKind
	get     func(ctx context.Context, name types.NamespacedName) (client.Object, error)
	err     error

	mu  sync.Mutex
	ran map[types.NamespacedName]uint64 // the hashes of the objects that the inner reconciler has run for
}

// Reconcile implements reconcile.Reconciler.
func (r *reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	if r.err != nil {
		return reconcile.Result{}, reconcile.TerminalError(r.err) //nolint:wrapcheck // it is wrapped
	}

	hash, exists, err := r.look(ctx, req.NamespacedName)
	if err != nil {
		return reconcile.Result{}, err
	}

	if !exists {
		return r.absent(ctx, req)
	}

	working, end, err := r.process.gate.begin(ctx, hash)
	if err != nil || end == nil {
		if err == nil {
			r.forget(req.NamespacedName)
		}

		return reconcile.Result{}, nil // when the gate opens, the source enqueues all objects of the process
	}
	defer end()

	r.mu.Lock()
	r.ran[req.NamespacedName] = hash
	r.mu.Unlock()

	return r.inner.Reconcile(working, req) //nolint:wrapcheck // it is the controller's
}

// look returns the hash of the object.
func (r *reconciler) look(ctx context.Context, name types.NamespacedName) (hash uint64, exists bool, err error) {
	obj, err := r.get(ctx, name)
	if apierrors.IsNotFound(err) {
		return 0, false, nil
	}

	if err != nil {
		return 0, false, fmt.Errorf("read %s %s: %w", r.kind.Kind, name, err)
	}

	return r.process.options.Hash(r.kind, obj), true, nil
}

// absent reconciles an object that was deleted, until the inner reconciler has no error and does not ask for another call.
func (r *reconciler) absent(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	r.mu.Lock()
	hash, ran := r.ran[req.NamespacedName]
	r.mu.Unlock()

	if !ran {
		return reconcile.Result{}, nil
	}

	working, end, err := r.process.gate.begin(ctx, hash)
	switch {
	case err != nil && (errors.Is(err, ErrLost) || errors.Is(err, errOutside)):
		return reconcile.Result{}, nil
	case err != nil:
		return reconcile.Result{RequeueAfter: recheck}, nil
	case end == nil:
		r.forget(req.NamespacedName)

		return reconcile.Result{}, nil
	}

	defer end()

	result, err := r.inner.Reconcile(working, req)
	if err == nil && result.IsZero() {
		r.forget(req.NamespacedName)
	}

	return result, err //nolint:wrapcheck // it is the controller's
}

func (r *reconciler) forget(name types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()

	delete(r.ran, name)
}
