package engine

import (
	"context"
	"slices"
	"time"

	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/rebalancer/feed"
	"github.com/clusterring/clusterring/services/rebalancer/work"
)

// fewObjects is the number of objects of a ring up to which followers are watched in all namespaces at once.
const fewObjects = 20_000

// watched changes what is known of watches of followers.
func (s *state) watched(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()

	change()

	if s.table.News() {
		notify(s.gather)
	}
}

// gatherer finds the followers of objects whenever an object waits for them, until ctx ends.
func (e *Engine) gatherer(ctx context.Context) {
	s := newSources(e)
	defer s.stop()

	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-e.gather:
			e.seek(ctx, s)
		}
	}
}

// seek opens and closes watches of followers, and begins lists where nothing proves that they have shown everything.
func (e *Engine) seek(ctx context.Context, s *sources) {
	if e.Target() == nil {
		return
	}

	var (
		watched map[work.Place]resources.Resource
		again   []work.Place
	)

	e.update(func(now time.Time) { watched, again = e.table.Seek(now, e.hasFew(), !e.unseen()) })
	s.followers(ctx, watched)

	for _, at := range again {
		if f := s.all[followersAt(at)]; f != nil {
			f.stream.Select(f.scope.Selector, true)
		}
	}
}

// followersAt returns the ID of a watch of followers.
func followersAt(at work.Place) sourceID {
	return sourceID{looksFor: forFollowers, resource: at.Of, namespace: at.Namespace}
}

// followers ensures that exactly these watches of followers run.
func (s *sources) followers(ctx context.Context, watched map[work.Place]resources.Resource) {
	among := s.e.Objects.ShardLabel()
	if s.e.Target().Set.Selector() != "" {
		among = "" // an object may come into the ring with followers that have no shard, and no source reports these again
	}

	wanted := map[sourceID]feed.Scope{}
	for at, r := range watched {
		wanted[followersAt(at)] = feed.Scope{GVR: r.GVR, Namespace: at.Namespace, Selector: among}
	}

	for id, f := range s.all {
		if f.scope != wanted[id] {
			s.drop(id, f)
			s.e.watched(func() { s.e.table.Unwatch(work.Place{Of: id.resource, Namespace: id.namespace}) })
		}
	}

	for _, id := range inOrder(wanted) {
		if s.all[id] != nil {
			continue
		}

		sink := &followed{e: s.e, id: id}
		s.e.watched(func() { sink.watch = s.e.table.Watch(work.Place{Of: id.resource, Namespace: id.namespace}) })

		f := &following{scope: wanted[id]}
		f.stream = feed.NewStream(s.e.Objects, f.scope, sink, s.e.Clock)
		s.run(ctx, id, f, f.stream.Run)
	}
}

// followed receives what a watch of followers shows.
type followed struct {
	e     *Engine
	id    sourceID
	watch *work.Watch
}

func (s *followed) Begin() { s.e.watched(s.watch.Begin) }

func (s *followed) Present(ctx context.Context, o feed.Object) {
	s.e.ancestors.Saw(o.GVR.GroupResource(), o.UID, o.Controller)

	waits := false
	s.e.watched(func() { waits = s.watch.Show(o) })

	missed := waits && s.e.gatherOne(ctx, o) != nil
	s.e.watched(func() { s.watch.Reached(o.ResourceVersion, missed) })
}

func (s *followed) Gone(id feed.ID, version string) {
	s.e.watched(func() {
		s.watch.Show(feed.Object{ID: id})
		s.watch.Reached(version, false)
	})
}

func (s *followed) Listed(context.Context) { s.e.watched(func() { s.watch.Listed(s.e.clock.Now()) }) }

func (s *followed) Failed(err error) {
	s.e.watched(func() { s.watch.Failed(err != nil) })
	s.e.troubled(s.id, err)
}

// gatherOne observes an object that follows others, if a family waits for it.
func (e *Engine) gatherOne(ctx context.Context, o feed.Object) (err error) {
	o.Above, err = e.Target().Above(ctx, e.lookup(), o)

	e.mu.Lock()
	waits := e.table.Awaited(o)
	e.mu.Unlock()

	if !waits {
		return err
	}

	e.observe(ctx, sight{object: o, room: func() bool { return !e.table.FullOfFollowers() }})

	return nil
}

// unseen reports whether objects of the resources may exist that have no shard, follow others, and were not seen yet.
// This is the case until the streams of such objects have completed their first list. The lock must be held.
func (s *state) unseen() bool {
	for id, first := range s.unlisted {
		among := func(r resources.Resource) bool { return r.GroupResource() == id.resource }
		if id == newTarget || first && id.looksFor == forUnassigned && slices.ContainsFunc(s.target.Set.Controlled(), among) {
			return true
		}
	}

	return false
}

// few reports whether the ring is known to have few objects.
func (s *state) few() bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.hasFew()
}

// hasFew is few with the lock held.
func (s *state) hasFew() bool { return s.passes.objects > 0 && s.passes.objects <= fewObjects }
