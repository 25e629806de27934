package work

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/clusterring/clusterring/services/rebalancer/feed"
)

// checkTable verifies the invariants.
func checkTable(t require.TestingT, x *Table) {
	require.NoError(t, x.verify())
	x.Summary()
}

// Violated invariants are found.
func TestCorruptTableIsFound(t *testing.T) {
	now := time.Unix(1_000_000_000, 0)

	for name, corrupt := range map[string]func(x *Table, e *entry){
		"3: no worker takes what is due":    func(x *Table, _ *entry) { x.lanes.all[0].due = [ranks]queue{} },
		"3: two workers may have an object": func(x *Table, e *entry) { e.lane.due[urgent].push(e) },
		"3: what a worker has is not due":   func(x *Table, e *entry) { x.moving[e] = struct{}{} },
		"3: an object is kept as another":   func(_ *Table, e *entry) { e.object.Name = "other" },
		"4: a permit is held without a drain": func(x *Table, e *entry) {
			x.move(e, Taken)
			e.phase, e.holds = Draining, "a"
			delete(x.moving, e)
			x.phases[Moving]--
			x.phases[Draining]++
		},
		"4: a permit is not given back":      func(x *Table, _ *entry) { x.permits.count(shardLane{shard: "a"}, false, 1) },
		"4: a move counts that is none":      func(x *Table, _ *entry) { x.permits.begin(now, &entry{}) },
		"5: nothing waits for a cause":       func(x *Table, _ *entry) { x.waitingFor(HeldBy("a")) },
		"5: a cause wakes not all":           func(x *Table, e *entry) { x.waitingFor(HeldBy("a")).entries.PushBack(e) },
		"5: a timer is of what is over":      func(x *Table, _ *entry) { x.at(&entry{}, now) },
		"6: the counts are wrong":            func(x *Table, _ *entry) { x.phases[Parked]++ },
		"7: no shard works on what waits":    func(x *Table, e *entry) { e.unqueue(); e.lane.due[regular].push(e) },
		"9: more follow an owner than there": func(x *Table, e *entry) { x.following["owner"] = sets.New(e) },
		"9: a family belongs to no object":   func(x *Table, e *entry) { x.families["uid"] = &family{uid: "uid", owner: e} },
	} {
		t.Run(name, func(t *testing.T) {
			x := New(Limits{Workers: 1000, Drains: 1, PerShard: 1, DrainTimeout: time.Minute, Active: 10, Parked: 10})
			o := feed.Object{ID: id("o"), ResourceVersion: "1", Shard: "a"}
			x.See(now, o, false)
			require.NoError(t, x.verify())

			corrupt(x, x.entries[o.ID])
			require.ErrorContains(t, x.verify(), name[:2])
		})
	}
}
