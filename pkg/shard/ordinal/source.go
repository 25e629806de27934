package ordinal

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// relist is how long the source waits after it could not list the cache.
const relist = time.Second

// Source returns a source that enqueues all objects of this process, from the cache of the manager, each time that its share changes: those that it
// has gained were dropped before. Add it to each controller whose reconciler is wrapped, with its kind in the form that it watches. Nearly all objects
// change their process anyway when the number of replicas does.
func (p *Process) Source(c cache.Cache, obj client.Object) source.Source {
	return source.Func(func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		list, err := p.listOf(obj)
		if err != nil {
			return err
		}

		changes := p.listen()

		go func() {
			for { // the share may have changed since the events of the first list were dropped, so the first turn counts, too
				_ = wait.PollUntilContextCancel(ctx, relist, true, func(ctx context.Context) (bool, error) {
					err := p.enqueueMine(ctx, queue, c, list)
					if err != nil && ctx.Err() == nil {
						log.Log.WithName("ordinal").Error(err, "Cannot enqueue the objects of this process; trying again")
					}

					return err == nil, nil
				})

				select {
				case <-ctx.Done():
					return
				case <-changes:
				}
			}
		}()

		return nil
	})
}

func (p *Process) enqueueMine(ctx context.Context, queue workqueue.TypedInterface[reconcile.Request], c cache.Cache, of client.ObjectList) error {
	list, _ := of.DeepCopyObject().(client.ObjectList)
	if err := c.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list from the cache: %w", err)
	}

	err := meta.EachListItem(list, func(item runtime.Object) error {
		obj, ok := item.(client.Object)
		if !ok {
			return fmt.Errorf("%T is not an object", item)
		}

		owns, err := p.Owns(obj)
		if owns {
			queue.Add(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(obj)})
		}

		return err
	})
	if err != nil {
		return fmt.Errorf("look at a list from the cache: %w", err)
	}

	return nil
}

// listOf returns an empty list of the object's kind, in the object's form.
func (p *Process) listOf(obj client.Object) (client.ObjectList, error) {
	gvk, err := apiutil.GVKForObject(obj, p.scheme)
	if err != nil {
		return nil, fmt.Errorf("determine the kind of %T: %w", obj, err)
	}

	gvk.Kind += "List"

	var list client.ObjectList

	switch obj.(type) {
	case *metav1.PartialObjectMetadata:
		list = &metav1.PartialObjectMetadataList{}
	case runtime.Unstructured:
		list = &unstructured.UnstructuredList{}
	default:
		made, err := p.scheme.New(gvk)
		if err != nil {
			return nil, fmt.Errorf("determine the list of %T: %w", obj, err)
		}

		typed, ok := made.(client.ObjectList)
		if !ok {
			return nil, fmt.Errorf("%T is not a list", made)
		}

		list = typed
	}

	list.GetObjectKind().SetGroupVersionKind(gvk)

	return list, nil
}
