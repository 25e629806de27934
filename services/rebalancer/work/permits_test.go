package work

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/clusterring/clusterring/services/rebalancer/feed"
)

// planner drains objects of the shard "from" that belong to the shard "to", one after the other, with the help of a
// table.
type planner struct {
	*testing.T

	table *Table
	now   time.Time
	last  int
}

func newPlanner(t *testing.T, waiting int) *planner {
	t.Helper()

	p := &planner{T: t, now: time.Unix(1e9, 0),
		table: New(Limits{Workers: 1000, Drains: 500, PerShard: 100, DrainTimeout: time.Minute, Active: 10_000,
			Parked: 10_000})}
	p.table.Recheck(p.now, func(shard string) bool { return shard != "" }, func(feed.ID) bool { return true })

	for i := range waiting {
		p.table.See(p.now, p.version("o"+strconv.Itoa(i), "from", false), false)
	}

	return p
}

func (p *planner) version(name, shard string, draining bool) feed.Object {
	p.last++

	return feed.Object{ID: id(name), ResourceVersion: strconv.Itoa(p.last), Shard: shard, Labelled: true,
		Draining: draining}
}

// drain lets workers do everything that is due, and returns the objects that are drained now.
func (p *planner) drain() (drained []string) {
	for {
		job, ok := p.table.Take(p.now)
		if !ok {
			return drained
		}

		o := job.Object
		if job.Permit != "from" {
			p.table.Report(p.now, o.ID, Outcome{Object: &o, Event: Blocked, Cause: PermitOf("from", o.GVR.GroupResource())})
			continue
		}

		o = p.version(o.Name, "from", true)
		p.table.Report(p.now, o.ID, Outcome{Object: &o, Event: Asked})

		drained = append(drained, o.Name)
	}
}

// handOn lets the shard release the objects, and assigns them.
func (p *planner) handOn(names []string) {
	for _, name := range names {
		p.table.See(p.now, p.version(name, "", false), false)
	}

	for range names {
		p.table.lanes.jobs = 0 // in order

		_, ok := p.table.Take(p.now)
		require.True(p, ok)
	}

	for _, name := range names {
		o := p.version(name, "to", false)
		p.table.Report(p.now, o.ID, Outcome{Object: &o, Event: SeenInPlace})
	}
}

// As many objects move at a time as a constant says, and the next ones when these are in their places.
func TestSomeObjectsMoveAtATime(t *testing.T) {
	p := newPlanner(t, 2*movesAtOnce)

	drained := p.drain()
	require.Len(t, drained, movesAtOnce)
	p.handOn(drained[:10])
	require.Len(t, p.drain(), 10)
}

// Fewer objects that others may follow move at a time, beside the others.
func TestFewOwnersMoveAtATime(t *testing.T) {
	p := newPlanner(t, 2*movesAtOnce)
	p.table.Owners(p.now, sets.New(p.version("0", "", false).GVR.GroupResource()))

	drained := p.drain()
	require.Len(t, drained, ownersAtOnce)
	p.handOn(drained[:2])
	require.Len(t, p.drain(), 2)

	p.table.Owners(p.now, nil)
	require.Len(t, p.drain(), movesAtOnce, "those of owners count for themselves")
}

// A shard that works on objects for long does not keep others from being drained.
func TestMovesDoNotWaitForWorkOfShards(t *testing.T) {
	p := newPlanner(t, 3*movesAtOnce)

	require.Len(t, p.drain(), movesAtOnce)
	require.Empty(t, p.drain())

	at, ok := p.table.Next()
	require.True(t, ok)
	require.Equal(t, p.now.Add(moveCounts), at)

	p.now = at
	require.Len(t, p.drain(), movesAtOnce)
}

// A drain that fails, and one that is not needed after all, make room at once.
func TestMovesThatDoNotHappenDoNotCount(t *testing.T) {
	p := newPlanner(t, 3*movesAtOnce)

	for range 2 * (movesAtOnce + 4) {
		job, ok := p.table.Take(p.now)
		require.True(t, ok)

		out := Outcome{Object: &job.Object, Event: Blocked, Cause: PermitOf("from", job.Object.GVR.GroupResource())}
		if job.Permit == "from" {
			out = Outcome{Object: &job.Object, Event: Failed, Stale: true}
		}

		p.table.Report(p.now, job.Object.ID, out)
	}

	require.Len(t, p.drain(), movesAtOnce)
}

// No object is drained while drains are paused, and those that waited are drained afterwards.
func TestDrainsArePaused(t *testing.T) {
	p := newPlanner(t, 2*movesAtOnce)
	p.table.pause(p.now, p.now.Add(time.Second))
	require.Empty(t, p.drain())

	at, ok := p.table.Next()
	require.True(t, ok)
	require.Equal(t, p.now.Add(time.Second), at)

	p.now = at
	p.table.Expire(p.now)
	require.Len(t, p.drain(), movesAtOnce)
}
