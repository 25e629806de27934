// Package ships counts the Ships that were ever made, by a watch: the controller of Fleets makes those that it misses, so that one in excess shows
// what it did not see.
package ships

import (
	"context"
	"fmt"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/tools/example/api/v1alpha1"
)

// History is what was seen of the Ships of one namespace. Make it with [Follow]; it is safe for concurrent use.
type History struct {
	running sync.WaitGroup

	mu   sync.Mutex
	made map[types.UID]sets.Set[types.UID] // by Fleet
	err  error
}

func newHistory() *History { return &History{made: map[types.UID]sets.Set[types.UID]{}} }

// Follow begins to watch the Ships of a namespace, which has none yet, until the context ends.
func Follow(ctx context.Context, c client.WithWatch, namespace string) (*History, error) {
	list := &v1alpha1.ShipList{}
	if err := c.List(ctx, list, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("list the Ships of %s: %w", namespace, err)
	}
	h := newHistory()
	for i := range list.Items {
		h.add(&list.Items[i])
	}
	w, err := watchtools.NewRetryWatcherWithContext(ctx, list.ResourceVersion, &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return c.Watch(ctx, &v1alpha1.ShipList{}, &client.ListOptions{Namespace: namespace, Raw: &o})
		},
	})
	if err != nil {
		return nil, fmt.Errorf("watch the Ships of %s: %w", namespace, err)
	}
	h.running.Go(func() {
		for e := range w.ResultChan() {
			switch ship, is := e.Object.(*v1alpha1.Ship); {
			case e.Type == watch.Bookmark:
			case is:
				h.add(ship)
			default:
				h.fail(fmt.Errorf("the watch of the Ships of %s has failed: %v", namespace, e.Object))
			}
		}
	})
	return h, nil
}

func (h *History) add(ship *v1alpha1.Ship) {
	controller := metav1.GetControllerOfNoCopy(ship)
	if controller == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.made[controller.UID] == nil {
		h.made[controller.UID] = sets.New[types.UID]()
	}
	h.made[controller.UID].Insert(ship.UID)
}

func (h *History) fail(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.err = err
}

// Excess returns how many more Ships were made than each of the Fleets shall have, in all, and how many fewer. The error says that the history is not
// complete.
func (h *History) Excess(fleets []v1alpha1.Fleet) (excess, missing int, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range fleets {
		made, shall := h.made[fleets[i].UID].Len(), int(fleets[i].Spec.Replicas)
		excess += max(made-shall, 0)
		missing += max(shall-made, 0)
	}
	return excess, missing, h.err
}

// Wait returns when nothing is watched any more, after the context has ended.
func (h *History) Wait() { h.running.Wait() }
