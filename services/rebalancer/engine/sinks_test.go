package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/rebalancer/objects"
)

// A drain may end between two watches, while the target changes. The workers have to look after the new list was made: before
// it, they may still see the drain, and nothing would ever tell of its end but the timeout.
func TestDrainsAreLookedAtAfterTheList(t *testing.T) {
	gvr := schema.GroupVersionResource{Group: "g", Version: "v1", Resource: "rs"}
	id := objects.ID{GVR: gvr, Namespace: "ns", Name: "a"}
	e := New(Config{Clock: clock.RealClock{}})
	t.Cleanup(e.queue.ShutDown)
	sink := drainSink{e, resources.Resource{GVR: gvr}}
	e.state.sawDrain(objects.Object{ID: id, Shard: "one", Draining: true}, time.Time{})

	sink.Begin()
	require.Zero(t, e.queue.Len())

	sink.Listed()
	require.Equal(t, 1, e.queue.Len())

	got, _ := e.queue.Get()
	require.Equal(t, id, got)
}
