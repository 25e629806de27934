package engine

import (
	"context"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/clusterring/clusterring/services/rebalancer/feed"
)

// lister lists the objects of one resource that lost shards have left behind. It completes every list, whatever happens to the
// ring meanwhile: otherwise the next change would interrupt the list again.
type lister struct {
	e   *Engine
	id  sourceID
	gvr schema.GroupVersionResource

	mu      sync.Mutex
	pending sets.Set[string]
	wake    chan struct{}
}

// add requests a list of the objects of more shards.
func (l *lister) add(shards []string) {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.pending.Insert(shards...)
	l.e.listing(l.id)
	notify(l.wake)
}

func (l *lister) run(ctx context.Context) {
	next := feed.Attempts(l.id.String())

	for {
		select {
		case <-ctx.Done():
			return
		case <-l.wake:
		}

		err := l.list(ctx)
		if ctx.Err() != nil {
			return
		}

		l.e.troubled(l.id, err)

		if err == nil {
			next.Reset()
			continue
		}

		l.e.pause(ctx, next.Next())
		notify(l.wake)
	}
}

// list lists what is pending. After an error, all of it is still pending.
func (l *lister) list(ctx context.Context) error {
	shards := l.take()

	for names := range slices.Chunk(sets.List(shards), namedAtOnce) {
		scope := feed.Scope{GVR: l.gvr, Selector: selector(l.e.Objects.ShardLabel(), "in", names)}
		lookup := l.e.lookup()

		_, err := l.e.hold(lookup, urgentHeld).list(ctx, scope, func(s sight) { l.e.observed(ctx, lookup, s) })
		if err != nil {
			l.back(shards)
			return err
		}

		shards.Delete(names...)
	}

	l.mu.Lock()
	defer l.mu.Unlock()

	if l.pending.Len() == 0 {
		l.e.listed(l.id)
	}

	return nil
}

// back makes shards pending again.
func (l *lister) back(shards sets.Set[string]) {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.pending = l.pending.Union(shards)
}

func (l *lister) take() sets.Set[string] {
	l.mu.Lock()
	defer l.mu.Unlock()

	shards := l.pending
	l.pending = sets.New[string]()

	return shards
}
