package ordinal

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// Source returns a source that enqueues all objects of this process, from the cache of the manager, each time that its share changes: those that it
// has gained were dropped before, and with StopTheWorld, so were those that changed while nobody worked. Add it to each controller whose reconciler is
// wrapped, with its kind in the form that it watches. Nearly all objects change their process anyway when the number of replicas does.
func (p *Process) Source(c cache.Cache, obj client.Object) source.Source {
	return source.Func(func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		list, err := p.listOf(obj)
		if err != nil {
			return err
		}

		changes := p.gate.listen()

		go p.enqueue(ctx, queue, changes, func(ctx context.Context) (client.ObjectList, error) {
			found, _ := list.DeepCopyObject().(client.ObjectList)

			return found, c.List(ctx, found, client.UnsafeDisableDeepCopy)
		})

		return nil
	})
}

// enqueue enqueues what belongs to this process, each time that it has another share.
func (p *Process) enqueue(
	ctx context.Context, queue workqueue.TypedInterface[reconcile.Request], changes <-chan struct{},
	list func(context.Context) (client.ObjectList, error),
) {
	for turn := -1; ; {
		// The share may have changed since the events of the first list were dropped, so the first turn counts, too.
		if _, now, closed := p.gate.now(); closed == nil && now != turn {
			if err := p.enqueueMine(ctx, queue, list); err == nil {
				turn = now
			} else if ctx.Err() == nil {
				log.Log.WithName("ordinal").Error(err, "Cannot enqueue the objects of this process; trying again")

				select {
				case <-ctx.Done():
				case <-p.clock.After(recheck):
				}

				continue
			}
		}

		select {
		case <-ctx.Done():
			return
		case <-changes:
		}
	}
}

func (p *Process) enqueueMine(
	ctx context.Context, queue workqueue.TypedInterface[reconcile.Request], list func(context.Context) (client.ObjectList, error),
) error {
	objects, err := list(ctx)
	if err != nil {
		return fmt.Errorf("list from the cache: %w", err)
	}

	err = meta.EachListItem(objects, func(item runtime.Object) error {
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

	switch obj.(type) {
	case *metav1.PartialObjectMetadata:
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(gvk)

		return list, nil
	case runtime.Unstructured:
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(gvk)

		return list, nil
	}

	made, err := p.scheme.New(gvk)
	if err != nil {
		return nil, fmt.Errorf("determine the list of %T: %w", obj, err)
	}

	list, ok := made.(client.ObjectList)
	if !ok {
		return nil, errors.New(gvk.Kind + " is not a list")
	}

	return list, nil
}
