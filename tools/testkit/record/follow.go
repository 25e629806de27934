package record

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

// Lister is any client of client-go for one resource.
type Lister[L List] interface {
	List(ctx context.Context, options metav1.ListOptions) (L, error)
	Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error)
}

// List is a list of objects.
type List interface {
	runtime.Object
	metav1.ListInterface
}

// Observer receives the events of [Follow].
type Observer[T metav1.Object] struct {
	// See is called for each existing object, as an added one, and then for each change.
	See func(event watch.EventType, object T)
	// Fail is called if events may have been missed.
	Fail func(error)
}

// Follow lists a resource, and then watches it in another goroutine until ctx ends; after that, wait returns. A broken watch resumes at the
// last event, so no event is lost. An empty selector selects all objects.
func Follow[L List, T metav1.Object](ctx context.Context, of Lister[L], selector string, o Observer[T]) (wait func(), err error) {
	list, err := of.List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, fmt.Errorf("list: %w", err)
	}

	err = meta.EachListItem(list, func(item runtime.Object) error {
		object, is := any(item).(T)
		if !is {
			return fmt.Errorf("an item is a %T", item)
		}
		o.See(watch.Added, object)

		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list: %w", err)
	}

	events, err := watchtools.NewRetryWatcherWithContext(ctx, list.GetResourceVersion(), &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.LabelSelector = selector
			return of.Watch(ctx, options)
		},
	})
	if err != nil {
		return nil, fmt.Errorf("watch: %w", err)
	}

	var running sync.WaitGroup
	running.Go(func() {
		for event := range events.ResultChan() {
			object, is := event.Object.(T)
			switch {
			case event.Type == watch.Bookmark:
			case event.Type == watch.Error || !is:
				o.Fail(fmt.Errorf("the watch has failed: %v", event.Object))
			default:
				o.See(event.Type, object)
			}
		}
	})

	return running.Wait, nil
}
