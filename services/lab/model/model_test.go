package model

import (
	"flag"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var large = flag.Bool("large", false, "explore also what takes minutes and gigabytes")

// protocol holds, with all faults of its scopes.
var protocol = []Scope{
	{Name: "one shard suffers everything", Shards: 2, Faulty: 1, Time: true, Freeze: true, DeleteLease: true,
		DropLabel: true, Pods: true},
	{Name: "two shards suffer", Shards: 2, Faulty: 2, Time: true, Pods: true},
	{Name: "three shards", Shards: 3, Faulty: 2},
	{Name: "shards announce that they stop", Shards: 2, Faulty: 2, Announce: true},
	{Name: "a shard announces that it stops, and suffers", Shards: 2, Faulty: 1, Time: true, Freeze: true, Announce: true},
	{Name: "the shard of an owner announces that it stops", Shards: 2, Faulty: 1, Child: true, Announce: true},
	{Name: "slots", Shards: 2, Faulty: 1, Time: true, Freeze: true, DeleteLease: true, Pods: true, Slots: true},
	{Name: "an owner and its child", Shards: 2, Faulty: 1, Time: true, DeleteLease: true, DropLabel: true,
		Child: true, Pods: true},
	{Name: "the ring leaves", Shards: 2, Faulty: 1, Child: true, DeleteRing: true},
	// This is an exposure: the child may leave a shard that has its owner. But it does not make two shards work at the
	// same time.
	{
		Name: "the child is written late", Shards: 2, Faulty: 1, Child: true, DropLabel: true,
		Exposed: LateChild, Forgiven: []Property{ChildStays},
	},
}

// more is the same in wider scopes: some twenty-eight million states, about ten minutes.
var more = []Scope{
	{Name: "two shards, owner and child", Shards: 2, Faulty: 2, Child: true, DropLabel: true},
	{Name: "three shards, all suffer", Shards: 3, Faulty: 3},
	{Name: "three shards, the ring leaves", Shards: 3, Faulty: 2, DeleteRing: true},
	{Name: "two shards announce that they stop, and suffer", Shards: 2, Faulty: 2, Time: true, Announce: true},
	{Name: "the shard of an owner announces that it stops, and suffers", Shards: 2, Faulty: 1, Time: true, Freeze: true,
		Child: true, Announce: true},
	{Name: "three shards announce that they stop", Shards: 3, Faulty: 2, Announce: true},
	{Name: "slots, an owner and its child", Shards: 2, Faulty: 1, Time: true, Freeze: true, Child: true, Slots: true},
	{Name: "two shards suffer everything", Shards: 2, Faulty: 2, Time: true, Freeze: true, DeleteLease: true, Pods: true},
	{
		Name: "everything", Shards: 2, Faulty: 1, Time: true, Freeze: true, DeleteLease: true, DropLabel: true, Child: true,
		DeleteRing: true, Pods: true,
	},
}

func TestProtocol(t *testing.T) {
	scopes := protocol
	if *large {
		scopes = append(scopes, more...)
	}

	var happened [kinds]bool

	total, begin := 0, time.Now() //nolint:forbidigo // for people

	for _, s := range scopes {
		t.Run(s.Name, func(t *testing.T) {
			begin := time.Now() //nolint:forbidigo // for people
			g, violation := explored(t, s)
			t.Logf("%d states, %d steps, depth %d, in %s",
				len(g.states), g.steps, g.depth(), time.Since(begin).Round(time.Millisecond)) //nolint:forbidigo // for people

			if violation != nil {
				t.Fatal(violation.Trace)
			}

			for k, did := range g.happened {
				happened[k] = happened[k] || did
			}

			total += len(g.states)
		})
	}

	t.Logf("%d states in %s", total, time.Since(begin).Round(time.Second)) //nolint:forbidigo // for people

	for k, did := range happened {
		require.True(t, did, "in no scope this happens: %s %s", texts[k][0], texts[k][1])
	}
}

func explored(t *testing.T, s Scope) (*graph, *Violation) {
	t.Helper()

	g, violation, err := explore(s)
	require.NoError(t, err)

	return g, violation
}

// only forgives every property except one, so that a counterexample to that one is found.
func only(p Property) (others []Property) {
	for _, other := range breaches[1:] {
		if other != p {
			others = append(others, other)
		}
	}

	return others
}
