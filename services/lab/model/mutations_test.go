package model

import (
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	fails    = Scope{Shards: 2, Faulty: 1, Time: true}
	frozen   = Scope{Shards: 2, Faulty: 1, Time: true, Freeze: true}
	vanishes = Scope{Shards: 2, Faulty: 1, Time: true, DeleteLease: true}
	pods     = Scope{Shards: 2, Faulty: 1, Time: true, Pods: true}
	slots    = Scope{Shards: 2, Faulty: 1, Time: true, Freeze: true, Slots: true}
	alone    = Scope{Shards: 1, Faulty: 1, Time: true, Announce: true}
	moves    = Scope{Shards: 2, Faulty: 2}
	child    = Scope{Shards: 2, Faulty: 1, Child: true}
	drops    = Scope{Shards: 2, Faulty: 1, DropLabel: true}
	leaving  = Scope{Shards: 2, Faulty: 1, DeleteRing: true, Child: true}
)

// Every guard of the protocol is necessary: without it, the checker finds a way to break each of these properties.
func TestMutations(t *testing.T) {
	for _, tc := range []struct {
		mutation Mutation
		scope    Scope
		breaks   []Property
	}{
		{NoLiveRead, moves, []Property{NoTaking, OneWorker}},
		{NoDrain, moves, []Property{NoTaking, OneWorker}},
		{ChildFirst, child, []Property{ChildStays}},
		{NoOldLabel, drops, []Property{NoTaking, OneWorker}},
		{ForeignClock, fails, []Property{NoTaking, OneWorker}},
		{AckInside, moves, []Property{NoTaking, OneWorker}},
		{AckInside, child, []Property{NoTaking, OneWorker}},
		{ReleaseInside, moves, []Property{OneWorker}},
		{NoPrecondition, moves, []Property{NoTaking, OneWorker}},
		{NoHoldOff, moves, []Property{NoTaking, OneWorker}},
		{ResumeAtOnce, moves, []Property{NoTaking, OneWorker}},
		{NoCatchUp, moves, []Property{OneWorker}},
		{NoDeadline, fails, []Property{NoTaking, OneWorker}},
		{LateRecreation, frozen, []Property{NoTaking, OneWorker}},
		{NoPatience, vanishes, []Property{NoTaking, OneWorker}},
		{ChildAnywhere, child, []Property{OneWorker}},
		{NoLiveOwner, child, []Property{OneWorker}},
		{NoTurns, child, []Property{ChildStays}},
		{PodsByName, pods, []Property{NoTaking, OneWorker}},
		{AnyWord, pods, []Property{NoTaking, OneWorker}},
		{EarlySilence, slots, []Property{OneWorker}},
		{OldAnnouncement, alone, []Property{Ownership}},
		{NoTakeover, fails, []Property{Ownership}},
		{NoAcknowledgement, moves, []Property{Ownership}},
		{RingsDiffer, moves, []Property{Progress}},
		{ReleaseAtOnce, leaving, []Property{NoTaking}},
		{NoFence, frozen, []Property{Refused}},
		{NoFence, slots, []Property{Refused}},
		{EarlyFinish, leaving, []Property{NothingLeft}},
	} {
		for _, p := range tc.breaks {
			t.Run(string(tc.mutation)+"/"+string(p[:2]), func(t *testing.T) {
				s := tc.scope
				s.Mutation, s.Forgiven = tc.mutation, only(p)

				g, violation := explored(t, s)
				require.NotNil(t, violation, "nobody notices the mutation")
				t.Logf("found after %d states:\n%s", len(g.states), violation.Trace)
				require.Equal(t, p, violation.Property)
			})
		}
	}
}

// The limits of the guarantees: the checker finds how each exposure breaks these properties. If it no longer finds a way,
// the protocol has become better; the exposure then belongs in the scopes of TestProtocol.
func TestExposures(t *testing.T) {
	for _, tc := range []struct {
		exposure Exposure
		scope    Scope
		breaks   []Property
	}{
		{SlowTake, moves, []Property{NoTaking, OneWorker}},
		{DropUnseen, drops, []Property{NoTaking, OneWorker}},
		{DropInDrain, drops, []Property{NoTaking, OneWorker}},
		{LateChild, child, []Property{ChildStays}},
		{DeleteUnseen, vanishes, []Property{NoTaking, OneWorker}},
		{OldReturn, frozen, []Property{Refused}},
		{LateFence, slots, []Property{Refused}},
		{DeleteTwice, vanishes, []Property{NoTaking, OneWorker}},
	} {
		for _, p := range tc.breaks {
			t.Run(string(tc.exposure)+"/"+string(p[:2]), func(t *testing.T) {
				s := tc.scope
				s.Exposed, s.Forgiven = tc.exposure, only(p)

				_, violation := explored(t, s)
				require.NotNil(t, violation, "this does no harm any more")
				t.Log(violation.Trace)
				require.Equal(t, p, violation.Property)
			})
		}
	}
}
