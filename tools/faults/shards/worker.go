package main

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/shard"
	"github.com/clusterring/clusterring/tools/testkit/history"
)

// worker returns the manager of a shard for objects of any kinds, for rings with resources that the example does not
// support. For each object of its main kinds, it creates a controlled object, and reports that in the object's status.
// It annotates each controlled object.
func (o *options) worker(_ context.Context, config *rest.Config, r recorder) (ctrl.Manager, error) {
	kinds := map[schema.GroupVersionKind]schema.GroupVersionKind{}

	var (
		objects  []client.Object
		declared shard.Kinds
	)

	for _, arg := range o.kinds {
		main, controlled, _ := strings.Cut(arg, "=")
		m, _ := schema.ParseKindArg(main)

		c, _ := schema.ParseKindArg(controlled)
		if m == nil || c == nil {
			return nil, fmt.Errorf("--main %q: want Kind.version.group=Kind.version.group", arg)
		}

		kinds[*m] = *c
		objects = append(objects, empty(*m), empty(*c))
		declared = append(declared, shard.Main(empty(*m)), shard.Controlled(empty(*c)))
	}

	managerOptions := ctrl.Options{
		Scheme: clientgoscheme.Scheme, Metrics: server.Options{BindAddress: "0"}, HealthProbeBindAddress: "0",
		Client: client.Options{Cache: &client.CacheOptions{Unstructured: true}},
	}

	mgr, err := shard.NewManager(config, managerOptions, shard.Options{
		Ring: o.ring, Name: o.name, Namespace: o.namespace, Kinds: declared, CheckWrites: true,
		LeaseDuration: o.leaseDuration, RenewDeadline: o.renewDeadline, RetryPeriod: o.retryPeriod,
	})
	if err != nil {
		return nil, fmt.Errorf("set up the manager: %w", err)
	}

	w := &worker{options: o, controlled: kinds, manager: mgr, client: mgr.GetClient(), recorder: r}
	for _, obj := range objects {
		if err := w.add(obj.GetObjectKind().GroupVersionKind()); err != nil {
			return nil, err
		}
	}

	return mgr, nil
}

// worker has one controller for each kind.
type worker struct {
	*options
	controlled map[schema.GroupVersionKind]schema.GroupVersionKind // by main kind
	manager    ctrl.Manager
	client     client.Client
	recorder   recorder
}

// empty returns an empty object of the kind.
func empty(gvk schema.GroupVersionKind) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(gvk)

	return u
}

func (w *worker) add(gvk schema.GroupVersionKind) error {
	obj, name := empty(gvk), strings.ToLower(gvk.Kind)

	inner := reconcile.Func(func(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
		return w.mark(ctx, gvk, req)
	})
	if controlled, main := w.controlled[gvk]; main {
		inner = func(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
			return w.complete(ctx, empty(gvk), empty(controlled), req)
		}
	}

	recorded := w.recorder.reconciler(history.Subject{Controller: name, Object: obj, Reader: w.manager.GetClient()}, inner)

	err := ctrl.NewControllerManagedBy(w.manager).Named(name).For(obj).Complete(recorded)
	if err != nil {
		return fmt.Errorf("set up the controller of %s: %w", name, err)
	}

	return nil
}

// complete reconciles a main object.
func (w *worker) complete(
	ctx context.Context, obj, child *unstructured.Unstructured, req reconcile.Request,
) (reconcile.Result, error) {
	if err := w.client.Get(ctx, req.NamespacedName, obj); err != nil || obj.GetDeletionTimestamp() != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}

	if err := w.ensure(ctx, obj, child); err != nil {
		return reconcile.Result{}, err
	}
	// The example writes the same status of Websites. The second writer has nothing to do.
	observed, _, _ := unstructured.NestedInt64(obj.Object, "status", "observedGeneration")
	if observed == obj.GetGeneration() {
		return reconcile.Result{}, nil
	}

	before := obj.DeepCopy()
	obj.Object["status"] = map[string]any{"observedGeneration": obj.GetGeneration(), "conditions": []any{map[string]any{
		"type": "Ready", "status": "True", "reason": "Rendered", "message": "the page is in the ConfigMap",
		"observedGeneration": obj.GetGeneration(), "lastTransitionTime": time.Now().UTC().Format(time.RFC3339),
	}}}

	return again(w.client.Status().Patch(ctx, obj,
		client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})))
}

// ensure creates the controlled object.
func (w *worker) ensure(ctx context.Context, obj, child *unstructured.Unstructured) error {
	child.SetNamespace(cmp.Or(obj.GetNamespace(), w.childNamespace))
	child.SetName(strings.ToLower(obj.GetKind()) + "-" + w.ring + "-" + obj.GetName())

	err := w.client.Get(ctx, client.ObjectKeyFromObject(child), child.DeepCopy())
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("read what it controls: %w", err)
	}

	if err == nil {
		return nil
	}

	if err := ctrl.SetControllerReference(obj, child, w.client.Scheme()); err != nil {
		return fmt.Errorf("control an object: %w", err)
	}

	err = w.client.Create(ctx, child)
	if client.IgnoreAlreadyExists(err) != nil { // it may exist without its label
		return fmt.Errorf("make what it controls: %w", err)
	}

	return nil
}

// mark reconciles a controlled object.
func (w *worker) mark(
	ctx context.Context, gvk schema.GroupVersionKind, req reconcile.Request,
) (reconcile.Result, error) {
	obj := empty(gvk)
	if err := w.client.Get(ctx, req.NamespacedName, obj); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}

	key := "faults.clusterring.dev/" + w.ring
	if obj.GetAnnotations()[key] != "" {
		return reconcile.Result{}, nil
	}

	before := obj.DeepCopy()

	annotations := obj.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}

	annotations[key] = "seen"
	obj.SetAnnotations(annotations)

	return again(w.client.Patch(ctx, obj, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})))
}

// again requeues after a conflict.
func again(err error) (reconcile.Result, error) {
	const soon = 100 * time.Millisecond
	if apierrors.IsConflict(err) {
		return reconcile.Result{RequeueAfter: soon}, nil
	}

	return reconcile.Result{}, client.IgnoreNotFound(err)
}
