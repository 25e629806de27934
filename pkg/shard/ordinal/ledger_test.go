package ordinal

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// of returns the situation of process 1, which works by plan 4 of two processes.
func of(change ...func(*situation)) situation {
	s := situation{
		ledger: ledger{
			plan: plan{Number: 4, Replicas: 2, Version: "100"},
			processes: map[int]entry{
				0: {ID: "web-0/a", Plan: 4, Beat: 7, Seconds: 15},
				1: {ID: "web-1/b", Plan: 4, Beat: 9, Seconds: 15},
			},
		},
		numbers: numbers{replicas: 2, version: "100"},
		ordinal: 1, id: "web-1/b", term: 15 * time.Second, acked: 4,
		expired: func(int) bool { return false },
	}
	for _, c := range change {
		c(&s)
	}

	return s
}

func TestWhatAProcessMakesOfTheLease(t *testing.T) {
	scaled := func(s *situation) { s.numbers = numbers{replicas: 3, version: "101"} }
	planned := func(replicas int) func(*situation) {
		return func(s *situation) { s.ledger.plan = plan{Number: 5, Replicas: replicas, Version: "101"} }
	}
	idle := func(s *situation) { s.idle = true }
	joins := func(s *situation) { s.acked, s.id, s.idle = 0, "web-1/c", true }
	gone := func(s *situation) { s.expired = func(ordinal int) bool { return ordinal == 0 } }

	for name, c := range map[string]struct {
		situation situation
		want      func(*ledger)
	}{
		"at rest":                        {of(), func(*ledger) {}},
		"renews":                         {of(func(s *situation) { s.renew = true }), func(l *ledger) { l.processes[1] = entry{"web-1/b", 4, 10, 15} }},
		"proposes":                       {of(scaled), func(l *ledger) { l.plan = plan{Number: 5, Replicas: 3, Version: "101"} }},
		"proposes nothing that is older": {of(scaled, planned(4)), func(*ledger) {}},
		"proposes nothing for a StatefulSet that changed otherwise": {of(func(s *situation) { s.numbers.version = "200" }), func(*ledger) {}},
		"acknowledges when it is idle":                              {of(planned(3), idle), func(l *ledger) { l.processes[1] = entry{"web-1/b", 5, 10, 15} }},
		"does not acknowledge while it works":                       {of(planned(3)), func(*ledger) {}},
		"renews the old acknowledgement while it works": {
			of(planned(3), func(s *situation) { s.renew = true }), func(l *ledger) { l.processes[1] = entry{"web-1/b", 4, 10, 15} },
		},
		"leaves without a share when it is idle":  {of(planned(1), idle), func(l *ledger) { delete(l.processes, 1) }},
		"stays without a share while it works":    {of(planned(1)), func(*ledger) {}},
		"leaves at the end":                       {of(idle, func(s *situation) { s.leaving = true }), func(l *ledger) { delete(l.processes, 1) }},
		"removes who has vanished":                {of(gone), func(l *ledger) { delete(l.processes, 0) }},
		"waits for its predecessor":               {of(joins), func(*ledger) {}},
		"takes the place of its predecessor":      {of(joins, func(s *situation) { s.expired = func(o int) bool { return o == 1 } }), func(l *ledger) { l.processes[1] = entry{"web-1/c", 4, 10, 15} }},
		"does not join at the end":                {of(joins, func(s *situation) { delete(s.ledger.processes, 1); s.leaving = true }), func(*ledger) {}},
		"does not join without a share":           {of(joins, planned(1), func(s *situation) { delete(s.ledger.processes, 1) }), func(*ledger) {}},
		"joins":                                   {of(joins, func(s *situation) { delete(s.ledger.processes, 1) }), func(l *ledger) { l.processes[1] = entry{"web-1/c", 4, 1, 15} }},
		"finds its entry after a lost answer":     {of(func(s *situation) { s.acked = 0 }), func(l *ledger) { l.processes[1] = entry{"web-1/b", 4, 10, 15} }},
		"takes the doubt back":                    {of(func(s *situation) { s.ledger.plan.Unproven, s.proven = true, true }), func(l *ledger) { l.plan.Unproven = false }},
		"keeps the doubt when the number changes": {of(scaled, func(s *situation) { s.ledger.plan.Unproven = true }), func(l *ledger) { l.plan = plan{Number: 5, Replicas: 3, Version: "101", Unproven: true} }},
		"does not remove its own expired entry":   {of(func(s *situation) { s.expired = func(o int) bool { return o == 1 } }), func(*ledger) {}},
	} {
		t.Run(name, func(t *testing.T) {
			before := ledger{plan: c.situation.ledger.plan, processes: map[int]entry{}}
			want := ledger{plan: c.situation.ledger.plan, processes: map[int]entry{}}

			for ordinal, e := range c.situation.ledger.processes {
				before.processes[ordinal], want.processes[ordinal] = e, e
			}

			c.want(&want)
			require.Equal(t, want, c.situation.next())
			require.Equal(t, before, c.situation.ledger, "what was read must not change")
		})
	}
}

func TestWhenAllAgree(t *testing.T) {
	l := of().ledger
	require.True(t, l.agreed(1, "web-1/b"))
	require.False(t, l.agreed(1, "web-1/c"), "another life of the process")
	require.False(t, l.agreed(2, "web-2/d"), "a process without an entry")

	l.plan.Unproven = true
	require.False(t, l.agreed(1, "web-1/b"))

	l.plan.Unproven, l.plan.Number = false, 5
	l.processes[1] = entry{"web-1/b", 5, 10, 15}
	require.False(t, l.agreed(1, "web-1/b"), "the other has not acknowledged")
}

func TestWhoHasLostItsPlace(t *testing.T) {
	require.False(t, of().lost())
	require.True(t, of(func(s *situation) { delete(s.ledger.processes, 1) }).lost())
	require.True(t, of(func(s *situation) { s.ledger.processes[1] = entry{ID: "web-1/c"} }).lost())
	require.False(t, of(func(s *situation) { s.acked = 0; delete(s.ledger.processes, 1) }).lost(), "it had none")
}

func TestTheLeaseKeepsWhatOthersWrote(t *testing.T) {
	l := of().ledger
	written := l.write(map[string]string{"other": "value", AnnotationProcessPrefix + "7": "old"})
	require.Len(t, written, 4)
	require.Equal(t, "value", written["other"])

	read, err := parse(written)
	require.NoError(t, err)
	require.True(t, read.equal(l))

	for _, broken := range []map[string]string{
		{}, {AnnotationPlan: "x"}, {AnnotationPlan: "{}", AnnotationProcessPrefix + "x": "{}"}, {AnnotationPlan: "{}", AnnotationProcessPrefix + "1": "x"},
	} {
		_, err := parse(broken)
		require.ErrorContains(t, err, "annotation ordinals.alpha.sharding.timebertt.dev/")
	}
}

func TestShares(t *testing.T) {
	n := numbers{start: 5, replicas: 3}

	for ordinal, want := range map[int]bool{4: false, 5: true, 7: true, 8: false} {
		s, has := n.share(ordinal)
		require.Equal(t, want, has, "ordinal %d", ordinal)

		if has {
			require.True(t, s.owns(uint64(300+ordinal-5))) //nolint:gosec // it is positive
		}
	}

	require.False(t, share{}.owns(0), "no replicas")

	_, has := numbers{}.share(0)
	require.False(t, has)
}
