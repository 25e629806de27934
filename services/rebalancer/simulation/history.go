package simulation

import (
	"fmt"
	"strings"
	"time"

	"github.com/clusterring/clusterring/services/rebalancer/simulation/apiserver"
)

// Act is what happens in a step.
type Act string

// What can happen. Who acts on what is not there, or is so already, does nothing.
const (
	// Join starts a process of the shard Who, in the namespace Value if that is not the usual one; the slower it is to give
	// objects up, the larger N.
	Join Act = "joins"
	// Leave has it stop and release its Lease, Crash has it end at once.
	Leave Act = "leaves"
	Crash Act = "crashes"
	// Freeze stops it for a time, with all that it is doing.
	Freeze Act = "freezes"
	// Flap has it come and go every few seconds.
	Flap Act = "comes and goes"
	// Hang has it acknowledge nothing, for a time.
	Hang Act = "hangs"

	// DeleteLease deletes the Lease of the shard Who, if the rebalancer has seen the shard hold it; PinLease does so while a finalizer keeps
	// it. LongLease writes a day into it as its duration, FullLease the largest number of transitions.
	DeleteLease Act = "has its Lease deleted"
	PinLease    Act = "has its Lease deleted, which a finalizer keeps"
	LongLease   Act = "is said to hold its Lease for a day"
	FullLease   Act = "is said to have taken its Lease as often as can be"

	// Create makes an object, with the label Value if it is not empty, controlled by Owner if that has a name. Restore does so
	// with what was there deleted before.
	Create  Act = "create"
	Restore Act = "restore"
	// Delete deletes an object, and later what it controls; Orphan leaves that alone.
	Delete Act = "delete"
	Orphan Act = "delete, orphaning its children"
	// Relabel writes the shard label Value, or removes the label if it is empty.
	Relabel Act = "relabel"
	// Drain writes the drain label, Undrain removes it.
	Drain   Act = "write the drain label of"
	Undrain Act = "remove the drain label of"
	// Reparent gives a child to Owner, or to nobody.
	Reparent Act = "re-parent"
	// Touch changes something else about an object, N times in quick succession.
	Touch Act = "touch"

	// EditRing has the ring say specs[N]; DeleteRing deletes it, CreateRing makes it anew.
	EditRing   Act = "edit the ring"
	DeleteRing Act = "delete the ring"
	CreateRing Act = "create the ring"

	// Team gives the namespace Who to the team Value.
	Team Act = "is given to team"

	// Serve serves the resource of Object in the version Value, and with N = 1 in that alone. Withdraw does not serve it for a moment,
	// as while its definition changes; Break has the server behind it not answer for a time; Remove deletes it, with its objects,
	// for a time. Rescope deletes its objects and serves it in the other scope.
	Serve    Act = "is served as"
	Withdraw Act = "is not served"
	Break    Act = "is served by a server that is down"
	Remove   Act = "is deleted with its definition"
	Rescope  Act = "changes its scope"

	// RestartRebalancer has another replica lead, after a time; RestartMonitor likewise.
	RestartRebalancer Act = "the rebalancer restarts"
	RestartMonitor    Act = "the lease monitor restarts"

	// NoAdmission has the webhook fail, for a time.
	NoAdmission Act = "admission fails"
	// Cut ends watches, Compact forgets history.
	Cut     Act = "watches end"
	Compact Act = "history is compacted"
	// Disturb is a fault of the API server, for a time.
	Disturb Act = "fault"
)

// Step is something that happens at some time.
type Step struct {
	// At is when, from the beginning; For is how long it lasts, if it does.
	At, For time.Duration
	Act     Act
	// Who is the shard or namespace that it is about, Object the object.
	Who    string
	Object apiserver.ID
	// Owner, Value and N are what the Act says.
	Owner apiserver.ID
	Value string
	N     int
	// Around says that a write passes admission by.
	Around bool
	// Fault says what goes wrong, but for when.
	Fault apiserver.Fault
}

// String describes the step for people.
func (s Step) String() string {
	words := []string{fmt.Sprintf("%9.3fs ", s.At.Seconds())}
	add := func(format string, args ...any) { words = append(words, fmt.Sprintf(format, args...)) }

	if s.Who != "" {
		add("%s", s.Who)
	}

	if s.Object.Name == "" && s.Object.Resource != "" {
		add("%s", s.Object.GroupResource)
	}

	add("%s", s.Act)

	if s.Object.Name != "" {
		add("%s", s.Object)
	}

	if s.Owner.Name != "" {
		add("of %s", s.Owner)
	}

	if s.Value != "" {
		add("%q", s.Value)
	}

	if s.Act == EditRing || s.Act == Touch || s.Act == Serve || s.Act == Join {
		add("(%d)", s.N)
	}

	if s.Around {
		add("past admission")
	}

	if f := s.Fault; s.Act == Disturb {
		add("%s of %s %s by %s", f.Effect, or(f.Verb, "every request"), or(f.Resource, "to anything"), or(f.Client, "anybody"))

		if f.Code != 0 {
			add("with %d", f.Code)
		}

		if f.Delay != 0 {
			add("by %s", f.Delay)
		}

		if f.Percent != 0 {
			add("in %d%%", f.Percent)
		}
	}

	if s.For > 0 {
		add("for %s", s.For)
	}

	return strings.Join(words, " ")
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}

	return s
}

// History is all that happens to a world, and what kind of world it is.
type History struct {
	// Seed decides about what the history does not say: how long requests take, and whom a fault hits that hits some.
	Seed uint64
	// Page is the largest page of a list; 0 is any. Streaming reports whether lists can be streamed.
	Page      int
	Streaming bool
	// Crowd says that many workers move objects at a time.
	Crowd bool
	// Lasting is what goes wrong for ever, Whom the shard or the resource that it is about.
	Lasting Condition
	Whom    string
	// Spec is what the ring says at first.
	Spec int
	// Steps are what happens, in order.
	Steps []Step
	// Verbose has the trace tell what the engine logs.
	Verbose bool
	// End is when all faults and disturbances are over.
	End time.Duration
}

// String returns the history for people to read.
func (h History) String() string {
	var b strings.Builder

	fmt.Fprintf(&b, "seed %d: pages of %d, streaming %t, many workers %t, the ring says %d at first\n",
		h.Seed, h.Page, h.Streaming, h.Crowd, h.Spec)

	for _, s := range h.Steps {
		fmt.Fprintf(&b, "%s\n", s)
	}

	fmt.Fprintf(&b, "%9.3fs  all disturbances are over\n", h.End.Seconds())

	if h.Lasting != Fine {
		fmt.Fprintf(&b, "but for ever %s: %s\n", h.Lasting, or(h.Whom, "all"))
	}

	return b.String()
}
