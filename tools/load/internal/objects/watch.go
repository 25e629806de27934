package objects

import (
	"context"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"

	"github.com/clusterring/clusterring/tools/testkit/record"
)

// patience limits [Watch.Until].
const patience = 5 * time.Minute

// Watch follows objects until Stop. Create it with [Client.Watch]; Until is for one goroutine at a time.
type Watch struct {
	cancel context.CancelFunc
	waits  []func()

	mu        sync.Mutex
	condition func() bool
	done      chan struct{} // of the condition
	err       error
}

// Watch calls see for each selected object, as an added one, and then for each change, one call at a time. A broken watch resumes where it
// has ended. Call Stop on the result.
func (c *Client) Watch(ctx context.Context, see func(event watch.EventType, of Kind, o *metav1.PartialObjectMetadata), what ...Selection) (*Watch, error) {
	w := &Watch{}
	ctx, w.cancel = context.WithCancel(ctx)

	for _, s := range what {
		wait, err := record.Follow(ctx, c.of(s), s.Labels, record.Observer[*metav1.PartialObjectMetadata]{
			See: func(event watch.EventType, o *metav1.PartialObjectMetadata) {
				w.update(func() { see(event, s.Kind, o) })
			},
			Fail: func(err error) {
				w.update(func() { w.err = fmt.Errorf("watch %s: %w", s.Kind.Resource, err) })
			},
		})
		if err != nil {
			w.Stop()
			return nil, fmt.Errorf("watch %s: %w", s.Kind.Resource, err)
		}

		w.waits = append(w.waits, wait)
	}

	return w, nil
}

func (c *Client) of(s Selection) metadata.ResourceInterface {
	return c.Metadata.Resource(s.Kind.GroupVersionResource).Namespace(s.Namespace)
}

// update changes what the condition depends on, and ends the wait for it if it holds now.
func (w *Watch) update(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()

	change()

	if w.condition != nil && (w.err != nil || w.condition()) {
		close(w.done)
		w.condition = nil
	}
}

// Until waits until the condition holds. The condition is called after each event, never at the same time as see. The text what describes
// it in the error.
func (w *Watch) Until(ctx context.Context, what string, condition func() bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("wait until %s: it has taken more than %s", what, patience))
	defer cancel()

	done := make(chan struct{})
	w.update(func() { w.condition, w.done = condition, done })

	select {
	case <-done:
		return w.Err()
	case <-ctx.Done():
		w.update(func() { w.condition = nil })
		return context.Cause(ctx)
	}
}

// Err returns the error that has ended the watch, if any.
func (w *Watch) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()

	return w.err
}

// Stop ends the watch. After that, nothing is seen.
func (w *Watch) Stop() {
	w.cancel()

	for _, wait := range w.waits {
		wait()
	}
}
