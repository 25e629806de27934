package engine

import (
	"context"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/rebalancer/feed"
	"github.com/clusterring/clusterring/services/rebalancer/work"
)

// fewObjects is the number of objects of a ring up to which followers are watched in all namespaces at once.
const fewObjects = 20_000

// watched changes what is known of watches of followers. Only the sources have to know: there may be many events.
func (e *Engine) watched(change func()) {
	e.mu.Lock()
	defer e.mu.Unlock()

	change()

	if e.table.News() {
		notify(e.seeks)
	}
}

// seek adds the watches of followers that are needed now, and returns which of them have to list again, because nothing
// proves that they have shown everything.
func (s *sources) seek(wanted map[sourceID]feed.Scope) sets.Set[sourceID] {
	among := s.e.Objects.ShardLabel()
	if s.target.Set.Selector() != "" {
		among = "" // an object may come into the ring with followers that have no shard, and no source reports these again
	}

	again := sets.New[sourceID]()

	s.e.update(func(now time.Time) {
		watched, lists := s.e.table.Seek(now, s.e.few(), !s.e.unseen())

		for at, r := range watched {
			id := sourceID{looksFor: forFollowers, Place: at}
			wanted[id] = feed.Scope{GVR: r.GVR, Namespace: at.Namespace, Selector: among}
		}

		for _, at := range lists {
			again.Insert(sourceID{looksFor: forFollowers, Place: at})
		}
	})

	return again
}

// followed receives what a watch of followers shows.
type followed struct {
	e     *Engine
	id    sourceID
	watch *work.Watch
}

func (s *followed) Begin() { s.e.update(func(time.Time) { s.watch.Begin() }) }

func (s *followed) Present(ctx context.Context, o feed.Object) {
	waits, missed := false, false
	s.e.watched(func() { waits = s.watch.Show(o) })

	if waits {
		missed = s.e.observe(ctx, sight{object: o, awaited: true}).err != nil
	} else {
		s.e.mover.Lookup.Ancestors.Saw(o.GVR.GroupResource(), o.UID, o.Controller)
	}

	s.e.watched(func() { s.watch.Reached(o.ResourceVersion, missed) })
}

func (s *followed) Gone(id feed.ID, version string) {
	s.e.watched(func() {
		s.watch.Show(feed.Object{ID: id})
		s.watch.Reached(version, false)
	})
}

func (s *followed) Listed(context.Context) { s.e.update(s.watch.Listed) }

func (s *followed) Failed(err error) {
	s.e.update(func(time.Time) { s.watch.Failed(err != nil) })
	s.e.troubled(s.id, err)
}

// unseen reports whether objects of the resources may exist that have no shard, follow others, and were not seen yet.
// This is the case until the streams of such objects have completed their first list. The lock must be held.
func (e *Engine) unseen() bool {
	for id, first := range e.unlisted {
		among := func(r resources.Resource) bool { return r.GroupResource() == id.Of }
		if id == newTarget || first && id.looksFor == forUnassigned && slices.ContainsFunc(e.target.Set.Controlled(), among) {
			return true
		}
	}

	return false
}

// few reports whether the ring is known to have few objects. The lock must be held.
func (e *Engine) few() bool {
	n, all := e.objects()

	return all && n > 0 && n <= fewObjects
}
