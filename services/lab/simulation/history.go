package simulation

import (
	"fmt"
	"strings"
	"time"

	"github.com/clusterring/clusterring/services/lab/simulation/apiserver"
	"github.com/clusterring/clusterring/services/rebalancer/engine"
)

// Act is the kind of a step.
type Act string

// The acts. An act on something that does not exist, or that already is in the desired state, does nothing.
const (
	// Join starts a process of the shard Who, in the namespace Value if it is not empty. The larger N, the slower the
	// process releases objects.
	Join Act = "joins"
	// Leave makes it stop and release its Lease; in half of the cases, it says before that it stops, and works until it
	// has no objects. Crash makes it end immediately.
	Leave Act = "leaves"
	Crash Act = "crashes"
	// Freeze stops it for a time, with everything that it is doing.
	Freeze Act = "freezes"
	// Flap makes it join and leave every few seconds.
	Flap Act = "comes and goes"
	// Hang makes it acknowledge nothing for a time.
	Hang Act = "hangs"

	// DeleteLease deletes the Lease of the shard Who, if the rebalancer has seen the shard hold it. PinLease does the same
	// while a finalizer keeps it. LongLease sets its duration to a day. FullLease sets the largest number of transitions.
	DeleteLease Act = "has its Lease deleted"
	PinLease    Act = "has its Lease deleted, which a finalizer keeps"
	LongLease   Act = "is said to hold its Lease for a day"
	FullLease   Act = "is said to have taken its Lease as often as can be"

	// Create creates an object, with the label Value if it is not empty, controlled by Owner if that has a name. Restore
	// does the same with an object that was deleted before.
	Create  Act = "create"
	Restore Act = "restore"
	// Delete deletes an object, and later the objects that it controls. Orphan does not delete the latter.
	Delete Act = "delete"
	Orphan Act = "delete, orphaning its children"
	// Make lets the shard that works on Owner create an object that Owner controls.
	Make Act = "its shard creates"
	// Relabel writes the shard label Value, or removes the label if Value is empty.
	Relabel Act = "relabel"
	// Rekey writes the label that may be the key of an object, or removes the label if Value is empty.
	Rekey Act = "change the key of"
	// Drain writes the drain label, Undrain removes it.
	Drain   Act = "write the drain label of"
	Undrain Act = "remove the drain label of"
	// Reparent makes Owner the controller of a child, or removes the controller.
	Reparent Act = "re-parent"
	// Touch makes another change to an object, N times in quick succession.
	Touch Act = "touch"

	// EditRing sets the spec of the ring to spec N. DeleteRing deletes the ring, and CreateRing creates it again.
	EditRing   Act = "edit the ring"
	DeleteRing Act = "delete the ring"
	CreateRing Act = "create the ring"

	// Team moves the namespace Who to the team Value.
	Team Act = "is given to team"

	// Serve serves the resource of Object in the version Value, and only in this version if N is 1. Withdraw does not
	// serve it for a moment, as while its definition changes. Break makes its server not answer for a time. Remove deletes
	// it with its objects for a time. Rescope deletes its objects and serves it with the other scope.
	Serve    Act = "is served as"
	Withdraw Act = "is not served"
	Break    Act = "is served by a server that is down"
	Remove   Act = "is deleted with its definition"
	Rescope  Act = "changes its scope"

	// RestartRebalancer makes another replica lead, after a time. RestartMonitor does the same.
	RestartRebalancer Act = "the rebalancer restarts"
	RestartMonitor    Act = "the lease monitor restarts"

	// NoAdmission makes the webhook fail for a time.
	NoAdmission Act = "admission fails"
	// Cut ends watches. Compact drops the history of the API server.
	Cut     Act = "watches end"
	Compact Act = "history is compacted"
	// Disturb injects a fault of the API server for a time.
	Disturb Act = "fault"
)

// Step is an event of a history.
type Step struct {
	// At is the time since the beginning. For is the duration, if the act has one.
	At, For time.Duration
	Act     Act
	// Who is the shard or namespace, and Object the object of the act.
	Who    string
	Object apiserver.ID
	// Owner, Value and N are parameters of the Act.
	Owner apiserver.ID
	Value string
	N     int
	// Around makes a write bypass admission.
	Around bool
	// Fault is the fault to inject, without its times.
	Fault apiserver.Fault
}

// String describes the step in words.
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
		add("%s of %s %s by %s", f.Effect, or(f.Verb, "every request"), or(f.Resource, "to anything"),
			or(f.Client, "any client"))

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

// History contains everything that happens to a cluster, and the properties of the cluster.
type History struct {
	// Seed determines what the history does not specify: how long requests take, and which clients a partial fault hits.
	Seed uint64
	// Page is the maximum size of pages of a list; 0 means no limit. Streaming reports whether lists can be streamed.
	Page      int
	Streaming bool
	// Crowd reports whether many workers move objects at a time.
	Crowd bool
	// Lasting is the fault that lasts forever. Whom is the shard or the resource that it affects.
	Lasting Condition
	Whom    string
	// Spec is the index of the initial spec of the ring.
	Spec int
	// Keyed reports whether resources have other keys than the name; see [History.spec].
	Keyed bool
	// Steps are the steps, in order.
	Steps []Step
	// Verbose adds the log of the engine to the trace.
	Verbose bool
	// End is when all faults and disturbances have ended.
	End time.Duration
}

// String returns a readable description of the history.
func (h History) String() string {
	var b strings.Builder

	fmt.Fprintf(&b, "seed %d: pages of %d, streaming %t, many workers %t, keys %t, the ring says %d at first\n",
		h.Seed, h.Page, h.Streaming, h.Crowd, h.Keyed, h.Spec)

	for _, s := range h.Steps {
		fmt.Fprintf(&b, "%s\n", s)
	}

	fmt.Fprintf(&b, "%9.3fs  all disturbances are over\n", h.End.Seconds())

	if h.Lasting != Fine {
		fmt.Fprintf(&b, "and forever %s: %s\n", h.Lasting, or(h.Whom, "all"))
	}

	return b.String()
}

// limits are the limits of an engine with many workers.
var limits = engine.Limits{Workers: 16, Total: 1000, PerShard: 1000, DrainTimeout: 30 * time.Second,
	Settle: 5 * time.Second}

// limits returns the limits of the engine. Few workers have few drains at a time, and many have many: otherwise, the
// order in which goroutines run would decide which worker gets the last drain.
func (h History) limits() engine.Limits {
	l := limits
	if !h.Crowd {
		l.Workers, l.Total, l.PerShard = 1, 8, 3
	}

	return l
}

// Result is the result of a history.
type Result struct {
	// Violations are the violated properties, each with what happened; empty if there are none.
	Violations []string
	// Trace is what happened, line by line. The order of lines of the same instant is random.
	Trace []string
}
