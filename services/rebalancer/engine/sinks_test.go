package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/rebalancer/objects"
)

// A drain may end between two watches, while the target changes: no event tells of that. If it were believed to be under
// way until its timeout, the ring would seem to be moving for a minute, and its slot would be lost.
func TestListEndsDrainsThatAreNotInIt(t *testing.T) {
	gvr := schema.GroupVersionResource{Group: "g", Version: "v1", Resource: "rs"}
	draining := func(name string) objects.Object {
		return objects.Object{ID: objects.ID{GVR: gvr, Namespace: "ns", Name: name}, Shard: "one", Labelled: true, Draining: true}
	}
	e := New(Config{Clock: clock.RealClock{}, Limits: Limits{DrainTimeout: time.Hour}})
	t.Cleanup(e.queue.ShutDown)

	sink := &drainSink{e: e, r: resources.Resource{GVR: gvr}}
	sink.Begin()
	sink.Present(t.Context(), draining("stays"))
	sink.Present(t.Context(), draining("ends"))
	sink.Listed()
	require.Len(t, e.state.drainsOf(gvr), 2)

	// The watch breaks, and the workers have not even looked at what it saw.
	sink = &drainSink{e: e, r: resources.Resource{GVR: gvr}}
	sink.Begin()
	sink.Present(t.Context(), draining("stays"))
	require.Len(t, e.state.drainsOf(gvr), 2, "the list may not be complete")
	sink.Listed()
	require.Equal(t, []objects.ID{draining("stays").ID}, e.state.drainsOf(gvr))

	moves, ok := e.owners.next(t.Context())
	require.True(t, ok, "what the owner controls shall follow")
	require.True(t, moves.shards.Has("one"))

	// From here on events tell.
	sink.Present(t.Context(), draining("later"))
	require.Len(t, e.state.drainsOf(gvr), 2)
	sink.Gone(draining("later").ID)
	require.Len(t, e.state.drainsOf(gvr), 1)
}

// A resource that is gone cannot be listed. A ring that is deleted together with it would wait for that for ever.
func TestResourceThatIsGoneHoldsNothingUp(t *testing.T) {
	gvr := schema.GroupVersionResource{Group: "g", Version: "v1", Resource: "rs"}
	o := objects.Object{ID: objects.ID{GVR: gvr, Namespace: "ns", Name: "a"}, Shard: "one", Labelled: true, Draining: true}
	gone := apierrors.NewNotFound(gvr.GroupResource(), "")

	for name, test := range map[string]struct {
		leaving bool
		err     error
		failed  bool
	}{
		"gone, leaving":      {true, gone, false},
		"gone, not leaving":  {false, gone, true},
		"forbidden, leaving": {true, apierrors.NewForbidden(gvr.GroupResource(), "", nil), true},
	} {
		t.Run(name, func(t *testing.T) {
			e := New(Config{Clock: clock.RealClock{}, Limits: Limits{DrainTimeout: time.Hour}})
			t.Cleanup(e.queue.ShutDown)
			e.target.Store(&Target{Leaving: map[schema.GroupResource]bool{gvr.GroupResource(): test.leaving}})
			e.state.sawDrain(o, time.Time{})

			(&drainSink{e: e, r: resources.Resource{GVR: gvr}}).Failed(test.err)
			require.Equal(t, test.failed, len(e.Report().Failures) > 0)
			require.Equal(t, apierrors.IsNotFound(test.err), e.queue.Len() == 1, "a worker finds out that the object is gone")
		})
	}
}

// Of a drain whose label is just being written the list says nothing: it keeps its slot until a worker has looked.
func TestListLeavesDrainsThatBegin(t *testing.T) {
	gvr := schema.GroupVersionResource{Group: "g", Version: "v1", Resource: "rs"}
	o := objects.Object{ID: objects.ID{GVR: gvr, Namespace: "ns", Name: "a"}, Shard: "one", Labelled: true}
	begin := func(e *Engine) {
		e.state.grant(o.ID, o.Shard)
		require.True(t, e.state.startDrain(o, time.Time{}))
	}

	for name, test := range map[string]func(*Engine, *drainSink){
		"before the list": func(e *Engine, s *drainSink) {
			begin(e)
			s.Begin()
		},
		"before the list, written during it": func(e *Engine, s *drainSink) {
			begin(e)
			s.Begin()
			e.state.asked(o.ID)
		},
		"during the list": func(e *Engine, s *drainSink) {
			s.Begin()
			begin(e)
			e.state.asked(o.ID)
		},
		"during the list, once more": func(e *Engine, s *drainSink) {
			begin(e)
			e.state.asked(o.ID)
			s.Begin()
			e.state.endDrain(o.ID)
			begin(e)
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := New(Config{Clock: clock.RealClock{}, Limits: Limits{DrainTimeout: time.Hour}})
			t.Cleanup(e.queue.ShutDown)
			sink := &drainSink{e: e, r: resources.Resource{GVR: gvr}}

			test(e, sink)
			sink.Listed()

			require.Equal(t, []objects.ID{o.ID}, e.state.drainsOf(gvr))
			require.Equal(t, 1, e.queue.Len())
		})
	}
}
