package world

import (
	"context"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/clusterring/clusterring/tools/load/internal/objects"
	"github.com/clusterring/clusterring/tools/load/internal/run"
)

// patience is how long objects may take to move, each.
const patience = 5 * time.Minute

// watching is what to watch.
type watching struct {
	kind                         objects.Kind
	namespace, selector, version string
	// leaves has objects counted that leave the selector, alters those that change; otherwise those that come.
	leaves, alters bool
	// count is how many are expected, 0 if that is not known yet. At mark of them the time is taken, too.
	count, mark int
	// changes says that the ring has other shards after it.
	changes bool
	// rests says that what comes between the moves and the pass after them is measured apart.
	rests bool
}

// counts returns the events that are counted.
func (w watching) counts() watch.EventType {
	switch {
	case w.leaves:
		return watch.Deleted
	case w.alters:
		return watch.Modified
	default:
		return watch.Added
	}
}

// times are when objects were seen to move.
type times struct {
	seen              int
	first, mark, last time.Time
}

// observer sees objects move. It costs little: the watch decodes metadata, and nothing else is done.
type observer struct {
	watching watch.Interface
	counted  chan times // the latest, if nobody has taken it
	latest   times      // what was taken last
	ended    chan error
	clock    interface{ Now() time.Time }
}

func observe(ctx context.Context, b *run.Bench, what watching) (*observer, error) {
	client := b.Objects.Metadata.Resource(what.kind.GroupVersionResource).Namespace(what.namespace)
	return newObserver(ctx, what, b.Clock, client.Watch)
}

// newObserver begins to see what happens after the version. An API server ends a watch that it cannot serve quickly enough: then another
// one goes on from there.
func newObserver(ctx context.Context, what watching, clock interface{ Now() time.Time }, begin cache.WatchFuncWithContext) (*observer, error) {
	w, err := watchtools.NewRetryWatcherWithContext(ctx, what.version, &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.LabelSelector = what.selector
			return begin(ctx, options)
		},
	})
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", what.kind.Resource, err)
	}

	o := &observer{watching: w, counted: make(chan times, 1), ended: make(chan error, 1), clock: clock}
	go o.follow(what)

	return o, nil
}

// follow counts until the watch ends.
func (o *observer) follow(what watching) {
	var now times

	for event := range o.watching.ResultChan() {
		switch {
		case event.Type == watch.Error:
			o.ended <- fmt.Errorf("watch %s: %w", what.kind.Resource, apierrors.FromObject(event.Object))
			return
		case event.Type != what.counts():
			continue
		}

		now.seen++
		if now.seen == 1 {
			now.first = o.clock.Now()
		}

		if now.seen == what.mark {
			now.mark = o.clock.Now()
		}

		if what.count > 0 && now.seen < what.count {
			continue
		}

		now.last = o.clock.Now()
		select {
		case <-o.counted:
		default:
		}
		o.counted <- now
	}
	o.ended <- fmt.Errorf("watch %s: it has ended", what.kind.Resource)
}

// await waits until n objects have been seen. It is for one goroutine.
func (o *observer) await(ctx context.Context, n int) (times, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("%d objects have not moved in %s", n, patience))
	defer cancel()

	for o.latest.seen < n {
		select {
		case o.latest = <-o.counted:
		case err := <-o.ended:
			return times{}, err
		case <-ctx.Done():
			return times{}, context.Cause(ctx)
		}
	}

	return o.latest, nil
}

// stop ends the watch.
func (o *observer) stop() { o.watching.Stop() }

func join(values []string) string { return strings.Join(values, ",") }
