package obligation

import (
	"maps"
	"slices"

	"github.com/stretchr/testify/require"
)

// checkTable counts a table anew, and checks what its invariants say of any one moment.
func checkTable(t require.TestingT, x *Table) {
	tally, slots := newTally(), newSlots()
	queued := map[*entry]int{}
	waits := map[Cause]int{}

	for _, q := range []*queue{&x.urgent, &x.regular} {
		for _, e := range q.entries[q.head:] {
			queued[e]++
		}
	}

	for id, e := range x.entries {
		if id != e.object.ID || e.phase == None || (e.phase == Due) != (queued[e] == 1) {
			require.Fail(t, "a bad entry", "%s is %s, and queued %d times", id, e.phase, queued[e])
		}

		checkSlot(t, e)

		tally.add(id, x.countedAs(e), 1)

		if e.holds != "" {
			slots.count(e.holds, e.late, 1)
		}

		if e.phase == Parked {
			waits[e.cause]++
			tally.parked++
		}
	}

	for c, w := range x.parked {
		tally.dropped += w.roomless()
		if c.kind == kindSlot {
			slots.wanted[c.shard] = struct{}{}
		}

		require.Equal(t, waits[c], w.n, "what waits because %s", c)
		require.Positive(t, w.n+w.roomless(), "nothing waits because %s", c)
		checkWaiting(t, x, c, w)
	}

	require.Subset(t, slices.Collect(maps.Keys(x.parked)), slices.Collect(maps.Keys(waits)))
	require.Equal(t, tally, x.tally, "counted anew")

	slots.inTime, slots.turn = max(slots.inTime, 0), x.slots.turn
	require.Equal(t, slots, x.slots, "counted anew")
	x.Summary()
}

// checkSlot checks invariant 4: who has a slot carries the drain label, or is on the way to it.
func checkSlot(t require.TestingT, e *entry) {
	drains := e.object.Draining && e.object.Shard != ""

	switch {
	case e.phase == Moving:
	case drains && e.holds != e.object.Shard, !drains && e.holds != "" && e.phase != Due:
		require.Fail(t, "a bad slot", "%s is %s at %q, drain: %t, and holds a slot of %q", e.object.ID, e.phase, e.object.Shard, drains, e.holds)
	}

	if e.holds != "" && e.since.IsZero() {
		require.Fail(t, "a bad slot", "%s holds a slot since ever", e.object.ID)
	}
}

// checkWaiting checks invariant 5: what is parked will be woken.
func checkWaiting(t require.TestingT, x *Table, c Cause, w *waiting) {
	switch {
	case w.n == 0:
	case c.kind == kindSlot:
		require.False(t, x.free(c.shard), "%d wait for a slot of %s, and one is free", w.n, c.shard)
	case c.kind == kindOwner:
		require.True(t, x.known(c.owner), "%d wait for %s, which is no obligation", w.n, c.owner)
	}
}
