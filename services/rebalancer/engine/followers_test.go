package engine

import (
	"testing"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/services/rebalancer/work"
)

var secrets = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}

// If a shard stops, no object is drained until the followers of objects are watched, or until that has taken too long.
func TestDrainsWaitForTheWatchOfFollowers(t *testing.T) {
	for name, c := range map[string]struct {
		stops   bool
		objects int
		follow  []string
		granted bool
	}{
		"a shard stops":                 {stops: true, objects: 1, follow: []string{"secrets"}},
		"no shard stops":                {objects: 1, follow: []string{"secrets"}, granted: true},
		"nothing follows objects":       {stops: true, objects: 1, granted: true},
		"there are too many objects":    {stops: true, objects: fewObjects + 1, follow: []string{"secrets"}, granted: true},
		"nobody knows how many objects": {stops: true, follow: []string{"secrets"}, granted: true},
	} {
		t.Run(name, func(t *testing.T) {
			e := unconnected("r")
			e.passes.objects = c.objects
			ring := target("r", c.follow...)
			ring.View = membership.NewView("r", []*coordinationv1.Lease{leaseOf("a", "a", false), leaseOf("b", "b", c.stops)}, nil)
			e.SetTarget(ring)

			o := configMap("object", "b")
			require.True(t, e.saw(ring, sight{object: o}))

			of := o.GVR.GroupResource()
			granted := func() bool { return e.table.Due() && !e.table.Waits(work.PermitOf("b", of)) }

			_, _, ok := e.take()
			require.True(t, ok)
			e.report(o.ID, work.Outcome{Object: &o, Event: work.Blocked, Cause: work.PermitOf("b", of)})
			require.Equal(t, c.granted, granted())

			wanted, _ := e.table.Seek(e.clock.Now(), e.hasFew(), true)
			require.Equal(t, !c.granted, len(wanted) > 0)

			w := e.table.Watch(work.Place{Of: secrets.GroupResource()})
			w.Begin()
			w.Listed(e.clock.Now())
			e.table.Seek(e.clock.Now(), e.hasFew(), true)
			require.True(t, granted())

			o.Draining, o.ResourceVersion = true, "2"
			require.True(t, e.saw(ring, sight{object: o}))

			wanted, _ = e.table.Seek(e.clock.Now(), e.hasFew(), true)
			require.Equal(t, len(c.follow) > 0, len(wanted) > 0, "a drained object is about to lose its shard")
		})
	}
}
