package engine

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/clusterring/clusterring/services/rebalancer/objects"
)

// drain is an object whose shard was asked to give it up.
type drain struct {
	shard string
	since time.Time
	late  bool
	// asking says that the drain label is just being written.
	asking bool
}

// state is what the goroutines of an engine share. Every method may be called by any of them.
type state struct {
	mu sync.Mutex
	// changed wakes whoever awaits something, news whoever reports; the latter holds one notice at most.
	changed *sync.Cond
	news    chan struct{}

	// work holds the objects that a worker has still to decide about, as last seen.
	work map[objects.ID]objects.Object
	// perResource counts those of them; too many hold back the streams that find more.
	perResource map[schema.GroupVersionResource]int
	// blocked says why an object in work cannot be dealt with yet.
	blocked map[objects.ID]string
	// swept are the objects in work that the sweep found.
	swept map[objects.ID]struct{}
	// granted are the objects that may be drained, by shard; they hold a slot like those in draining.
	granted map[objects.ID]string
	// draining are the objects that carry the drain label, or are just about to.
	draining map[objects.ID]drain
	// slots counts granted and draining by what limits are about. It is kept by those who change the two.
	slots slots
	// failures are the resources that cannot be read, with the reason.
	failures map[string]string
	// unlisted are the resources of the present target whose objects without an available shard are still being looked for.
	unlisted map[schema.GroupVersionResource]struct{}
	// sweep is how far the sweep of the present target is.
	sweep sweepState
	// suspects are the shards that it has to look at first.
	suspects suspects
}

type sweepState struct {
	acted   int  // writes to objects that this sweep has found
	left    int  // objects that it had to leave to a later one
	clean   bool // a sweep has left nothing
	settled bool // and one over all objects, after the settle period, found nothing
}

func newState() *state {
	s := &state{
		work:        map[objects.ID]objects.Object{},
		perResource: map[schema.GroupVersionResource]int{},
		blocked:     map[objects.ID]string{},
		swept:       map[objects.ID]struct{}{},
		granted:     map[objects.ID]string{},
		draining:    map[objects.ID]drain{},
		slots:       newSlots(),
		failures:    map[string]string{},
		unlisted:    map[schema.GroupVersionResource]struct{}{},
		news:        make(chan struct{}, 1),
	}
	s.changed = sync.NewCond(&s.mu)

	return s
}

// await blocks until the condition holds, which is asked with the lock held after every update; false if ctx ended first.
func (s *state) await(ctx context.Context, condition func() bool) bool {
	stop := context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.changed.Broadcast()
	})
	defer stop()

	s.mu.Lock()
	defer s.mu.Unlock()

	for !condition() {
		if ctx.Err() != nil {
			return false
		}

		s.changed.Wait()
	}

	return ctx.Err() == nil
}

// update changes the state under the lock and wakes whoever awaits something.
func (s *state) update(change func()) {
	s.note(change)
	s.changed.Broadcast()
}

// note changes the state under the lock in a way that nobody awaits: there is more to do, not less.
func (s *state) note(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()

	change()

	select {
	case s.news <- struct{}{}:
	default:
	}
}

// put takes an object on, as last seen.
func (s *state) put(o objects.Object) {
	s.note(func() {
		if _, ok := s.work[o.ID]; !ok {
			s.perResource[o.GVR]++
		}

		s.work[o.ID] = o
	})
}

// done drops an object that needs no decision any more. Its place among the draining ones is not affected.
func (s *state) done(id objects.ID) {
	s.update(func() { s.drop(id) })
}

// doneWith is done for an object as it was when it was decided about; if it was seen to change since, it stays.
func (s *state) doneWith(o objects.Object) (dropped bool) {
	s.update(func() {
		now, ok := s.work[o.ID]
		if dropped = !ok || now.ResourceVersion == o.ResourceVersion; dropped {
			s.drop(o.ID)
		}
	})

	return dropped
}

// drop is done with the lock held.
func (s *state) drop(id objects.ID) {
	if _, ok := s.work[id]; ok {
		s.perResource[id.GVR]--
	}

	delete(s.work, id)
	delete(s.blocked, id)
	s.ungrant(id)
	delete(s.swept, id)
}

// acted notes that an object was written to.
func (s *state) acted(id objects.ID) {
	s.note(func() {
		if _, ok := s.swept[id]; ok {
			s.sweep.acted++
		}
	})
}

// get returns what is to be decided about an object; ok is false if it was dropped. asked says that it is draining.
func (s *state) get(id objects.ID) (o objects.Object, ok, asked bool) {
	s.mu.Lock()
	defer s.mu.Unlock()

	o, ok = s.work[id]
	_, asked = s.draining[id]

	return o, ok, asked
}

// block notes why an object cannot be dealt with yet.
func (s *state) block(id objects.ID, reason string) {
	s.update(func() {
		if _, ok := s.work[id]; ok {
			s.blocked[id] = reason
		}
	})
}

// startDrain turns a granted slot into a drain; false if the object has none.
func (s *state) startDrain(o objects.Object, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	if _, ok := s.granted[o.ID]; !ok {
		return false
	}

	s.ungrant(o.ID)
	s.setDrain(o.ID, drain{shard: o.Shard, since: now, asking: true})

	return true
}

// asked notes that the drain label was written.
func (s *state) asked(id objects.ID) {
	s.note(func() {
		if d, ok := s.draining[id]; ok {
			d.asking = false
			s.setDrain(id, d)
		}
	})
}

// sawDrain notes that an object carries the drain label; the time counts from the first sight.
func (s *state) sawDrain(o objects.Object, now time.Time) (first bool) {
	s.update(func() {
		d, known := s.draining[o.ID]
		if first = !known; first {
			d.since = now
		}

		if o.Shard != "" {
			d.shard = o.Shard
		}

		d.asking = false

		s.setDrain(o.ID, d)
	})

	return first
}

// endDrain notes that an object no longer carries the drain label, and returns the shard that gave it up.
func (s *state) endDrain(id objects.ID) (shard string, was bool) {
	s.update(func() {
		var d drain
		if d, was = s.draining[id]; was {
			shard = d.shard
		}

		s.unsetDrain(id)
	})

	return shard, was
}

// markLate notes that a drain has not been acknowledged in time, and says whether that is news.
func (s *state) markLate(id objects.ID, now time.Time, timeout time.Duration) (d drain, news bool) {
	s.update(func() {
		var ok bool
		if d, ok = s.draining[id]; !ok || d.late || now.Sub(d.since) < timeout {
			return
		}

		d.late, news = true, true
		s.setDrain(id, d)
	})

	return d, news
}

// drainsOf returns the draining objects of one resource.
func (s *state) drainsOf(gvr schema.GroupVersionResource) []objects.ID {
	s.mu.Lock()
	defer s.mu.Unlock()

	return slices.DeleteFunc(slices.Collect(maps.Keys(s.draining)), func(id objects.ID) bool { return id.GVR != gvr })
}

// certainDrains returns those of them whose drain label is not just being written.
func (s *state) certainDrains(gvr schema.GroupVersionResource) map[objects.ID]struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()

	certain := map[objects.ID]struct{}{}

	for id, d := range s.draining {
		if id.GVR == gvr && !d.asking {
			certain[id] = struct{}{}
		}
	}

	return certain
}

// listed notes that objects without an available shard have been looked for, or cannot be.
func (s *state) listed(gvr schema.GroupVersionResource) {
	s.update(func() { delete(s.unlisted, gvr) })
}

// urgent says, with the lock held, whether there is work that objects wait for, and that can be done.
func (s *state) urgent() bool { return len(s.unlisted) > 0 || len(s.work) > len(s.blocked) }

// fail notes that something cannot be read; a nil error that it can.
func (s *state) fail(what string, err error) {
	s.update(func() {
		if err != nil {
			s.failures[what] = err.Error()
		} else {
			delete(s.failures, what)
		}
	})
}
