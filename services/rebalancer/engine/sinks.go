package engine

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/rebalancer/objects"
)

// astraySink takes the objects that have no available shard.
type astraySink struct {
	e *Engine
	r resources.Resource
}

func (s astraySink) Begin() {}

func (s astraySink) Present(ctx context.Context, o objects.Object) {
	if !o.Labelled && !o.Draining && !s.e.concerns(ctx, s.r, o) {
		// Watched because it has no label, and rightly so.
		s.e.settled(o.ID)
		return
	}

	s.e.submit(ctx, o)
}

func (s astraySink) Gone(id objects.ID) { s.e.settled(id) }

func (s astraySink) Listed() { s.e.state.listed(s.r.GVR) }

func (s astraySink) Failed(err error) {
	if err != nil {
		s.e.state.listed(s.r.GVR) // nobody knows when it will be
	}

	s.e.state.fail("unassigned "+s.r.GroupResource().String(), err)
}

// drainSink takes the objects that carry the drain label.
type drainSink struct {
	e *Engine
	r resources.Resource
	// known are the drains that were under way when the list began that is being read, listed those that are in it. Both are
	// nil between lists.
	known, listed map[objects.ID]struct{}
}

func (s *drainSink) Begin() {
	s.known, s.listed = s.e.state.certainDrains(s.r.GVR), map[objects.ID]struct{}{}
}

func (s *drainSink) Present(ctx context.Context, o objects.Object) {
	if s.listed != nil {
		s.listed[o.ID] = struct{}{}
	}

	if s.e.state.sawDrain(o, s.e.Clock.Now()) {
		s.e.queue.AddAfter(o.ID, s.e.Limits.DrainTimeout)
	}

	s.e.submit(ctx, o)
}

func (s *drainSink) Gone(id objects.ID) { s.e.drained(id) }

// Listed ends the drains that were under way and are not in the list: their label was removed while nobody watched, and no
// event will tell. A worker would not find out, for it may go by what was seen of the object earlier. Of a drain that
// began meanwhile this is not certain; there the worker that has written it will look once more.
func (s *drainSink) Listed() {
	certain := s.e.state.certainDrains(s.r.GVR)

	for _, id := range s.e.state.drainsOf(s.r.GVR) {
		_, listed := s.listed[id]
		_, known := s.known[id]
		_, still := certain[id]

		switch {
		case listed:
		case known && still:
			s.e.drained(id)
		default:
			s.e.queue.Add(id)
		}
	}

	s.known, s.listed = nil, nil
}

// Failed has the workers look at each drain if the resource is gone, and its objects with it: no list will end them. Of a resource that
// leaves the ring, nothing is missed then.
func (s *drainSink) Failed(err error) {
	if apierrors.IsNotFound(err) {
		for _, id := range s.e.state.drainsOf(s.r.GVR) {
			s.e.queue.Add(id)
		}

		if s.e.Target().Leaving[s.r.GroupResource()] {
			err = nil
		}
	}

	s.e.state.fail("draining "+s.r.GroupResource().String(), err)
}

// submit hands an object to the workers, when they have caught up.
func (e *Engine) submit(ctx context.Context, o objects.Object) {
	if !e.state.await(ctx, func() bool { return e.state.perResource[o.GVR] < maxWork }) {
		return
	}

	e.state.put(o)
	e.queue.Add(o.ID)
}

// settled notes that an object needs nothing any more.
func (e *Engine) settled(id objects.ID) {
	if _, ok, _ := e.state.get(id); ok {
		e.state.done(id)
		e.queue.Forget(id)
	}
}

// decided notes that an object, as it was then, needs nothing any more. If it was seen to change since, it stays.
func (e *Engine) decided(o objects.Object) {
	if e.state.doneWith(o) {
		e.queue.Forget(o.ID)
	}
}

// drained notes that an object has lost its drain label: its owner gave it up, or nobody wants it to any more.
func (e *Engine) drained(id objects.ID) {
	if shard, was := e.state.endDrain(id); was {
		e.owners.moved(id.Namespace, shard)
	}
}
