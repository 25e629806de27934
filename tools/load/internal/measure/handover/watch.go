package handover

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/lab/record"
	"github.com/clusterring/clusterring/tools/load/internal/objects"
)

// patience is how long the watch may take to tell what a list has shown.
const patience = time.Minute

// history is what the watches of owners and children have told.
type history struct {
	clock  clock.PassiveClock
	label  string
	cancel context.CancelFunc
	waits  []func()
	news   chan struct{}

	mu sync.Mutex
	// writes counts events. left is when an owner was given up last, by name; nobodys for how long, came when it came to another shard; version
	// is that of the last event.
	writes  int
	left    map[string]time.Time
	nobodys map[string]time.Duration
	came    map[string]time.Time
	version map[string]string
	err     error
}

// watch begins to watch owners and children as they are now.
func (o *owners) watch(ctx context.Context) (*history, error) {
	h := &history{
		clock: o.bench.Clock, label: v1alpha1.ShardLabel(o.fleet.Ring.Name), news: make(chan struct{}, 1),
		left: map[string]time.Time{}, nobodys: map[string]time.Duration{}, came: map[string]time.Time{}, version: map[string]string{},
	}
	ctx, h.cancel = context.WithCancel(ctx)

	for _, kind := range []objects.Kind{objects.Websites, objects.ConfigMaps} {
		of := o.bench.Objects.Metadata.Resource(kind.GroupVersionResource).Namespace(o.fleet.Ring.Namespace)

		wait, err := record.Follow(ctx, of, "", record.Observer[*metav1.PartialObjectMetadata]{
			See:  func(event watch.EventType, object *metav1.PartialObjectMetadata) { h.see(kind, event, object) },
			Fail: func(err error) { h.fail(fmt.Errorf("follow %s: %w", kind.Resource, err)) },
		})
		if err != nil {
			h.stop()
			return nil, fmt.Errorf("follow %s: %w", kind.Resource, err)
		}

		h.waits = append(h.waits, wait)
	}

	return h, nil
}

// see takes note of an event.
func (h *history) see(kind objects.Kind, event watch.EventType, object *metav1.PartialObjectMetadata) {
	if event != watch.Modified {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()

	h.writes++
	if kind == objects.Websites {
		h.owner(object)
	}
	h.tell()
}

func (h *history) fail(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()

	h.err = err
	h.tell()
}

// tell wakes who waits for news.
func (h *history) tell() {
	select {
	case h.news <- struct{}{}:
	default:
	}
}

// owner takes note of a write of an owner. The lock is held.
func (h *history) owner(o *metav1.PartialObjectMetadata) {
	now := h.clock.Now()

	h.version[o.Name] = o.ResourceVersion
	if o.Labels[h.label] == "" {
		h.left[o.Name] = now
		return
	}

	if since, was := h.left[o.Name]; was {
		h.nobodys[o.Name] = now.Sub(since)
		delete(h.left, o.Name)
	}

	h.came[o.Name] = now
}

// moved returns what has become of owners, given their versions, once the watches have told all of that.
func (h *history) moved(ctx context.Context, theirs map[string]string, began time.Time) (moved, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("the watch of owners has not told all in %s", patience))
	defer cancel()

	for {
		m, all, err := h.look(theirs, began)
		if all || err != nil {
			return m, err
		}

		select {
		case <-ctx.Done():
			return moved{}, context.Cause(ctx)
		case <-h.news:
		}
	}
}

func (h *history) look(theirs map[string]string, began time.Time) (m moved, all bool, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()

	var last time.Time

	times := map[string]time.Duration{}

	for name, version := range theirs {
		if h.version[name] != version {
			return moved{}, false, h.err
		}

		times[name] = h.nobodys[name]
		if h.came[name].After(last) {
			last = h.came[name]
		}
	}

	m = moved{owners: len(theirs), writes: float64(h.writes) / float64(len(theirs)), rate: float64(len(theirs)) / last.Sub(began).Seconds()}
	m.median, m.late = quantiles(slices.Sorted(maps.Values(times)))

	return m, true, h.err
}

// stop ends the watches.
func (h *history) stop() {
	h.cancel()

	for _, wait := range h.waits {
		wait()
	}
}
