package model

import (
	"fmt"
	"strings"
)

// kind is the kind of event in a step.
type kind uint8

const (
	starts kind = iota
	begins
	renews
	loses
	crashes
	freezes
	wakes
	stops
	announces
	releases
	succeeds
	gives
	entersMain
	leavesMain
	makesChild
	entersChild
	leavesChild
	seesMain
	seesChild
	givesUp
	acknowledges
	passesOn
	takes
	believes
	collects
	deletes
	passes
	observes
	decidesMain
	decidesChild
	confirms
	refrains
	writesMain
	writesChild
	planLearns
	assignersLearn
	finishes
	abandonsMain
	abandonsChild
	rebalancerRestarts
	monitorRestarts
	deletesRing
	updatesMain
	dropsMain
	createsChild
	updatesChild
	dropsChild

	kinds = iota
)

// texts describe, for each kind, who acts and what happens. % stands for the shard, and @ for the operation.
var texts = [kinds][2]string{
	starts:             {"shard %", "starts, and takes its Lease"},
	begins:             {"shard %", "ends its hold-off, with caches that show the present"},
	renews:             {"shard %", "renews its Lease"},
	loses:              {"shard %", "detects that it has lost its Lease, and ends"},
	crashes:            {"shard %", "crashes"},
	freezes:            {"shard %", "freezes"},
	wakes:              {"shard %", "goes on"},
	stops:              {"shard %", "is told to stop"},
	announces:          {"shard %", "says in its Lease that it stops, and goes on with its objects"},
	releases:           {"shard %", "releases its Lease"},
	succeeds:           {"shard %", "has another process, which takes over the slot"},
	gives:              {"shard %", "has no worker any more of the process before"},
	entersMain:         {"shard %", "begins to work on the object"},
	leavesMain:         {"shard %", "is done with the object"},
	makesChild:         {"shard %", "creates the child"},
	entersChild:        {"shard %", "begins to work on the child"},
	leavesChild:        {"shard %", "is done with the child"},
	seesMain:           {"shard %", "sees the object as it is"},
	seesChild:          {"shard %", "sees the child as it is"},
	givesUp:            {"shard %", "sends the acknowledgement of the drain"},
	acknowledges:       {"API server", "removes the labels, as shard % has acknowledged"},
	passesOn:           {"API server", "writes the label of the shard that the drain names, as shard % has acknowledged"},
	takes:              {"lease monitor", "takes the Lease of shard %"},
	believes:           {"lease monitor", "takes the Lease of shard %, because its Pod has ended"},
	collects:           {"lease monitor", "deletes the Lease of shard %"},
	deletes:            {"somebody", "deletes the Lease of shard %"},
	passes:             {"time", "D passes"},
	observes:           {"rebalancer", "learns about the Lease of shard %"},
	decidesMain:        {"rebalancer", "decides about the object: @"},
	decidesChild:       {"rebalancer", "decides about the child: @"},
	confirms:           {"rebalancer", "has it confirmed: @"},
	refrains:           {"rebalancer", "must not: @"},
	writesMain:         {"rebalancer", "writes the object: @"},
	writesChild:        {"rebalancer", "writes the child: @"},
	planLearns:         {"rebalancer", "learns that the ring is being deleted"},
	assignersLearn:     {"assigners", "have all learned that the ring is being deleted"},
	finishes:           {"rebalancer", "lets the ring go"},
	abandonsMain:       {"rebalancer", "forgets what it has decided about the object"},
	abandonsChild:      {"rebalancer", "forgets what it has decided about the child"},
	rebalancerRestarts: {"rebalancer", "restarts"},
	monitorRestarts:    {"lease monitor", "restarts"},
	deletesRing:        {"user", "deletes the ring"},
	updatesMain:        {"user", "updates the object"},
	dropsMain:          {"user", "writes the object without its labels"},
	createsChild:       {"controller", "creates the child"},
	updatesChild:       {"controller", "updates the child"},
	dropsChild:         {"controller", "writes the child without its label"},
}

var verbs = [...]string{
	nothing: "leave it", assign: "assign it to", drain: "drain it", withdraw: "withdraw the drain",
	release: "remove its labels",
}

func (o operation) String() string {
	text := verbs[o.verb]
	if o.verb == assign {
		text += " " + o.to.String()
	}

	if o.from != nobody {
		text += fmt.Sprintf(", once %s is known to be gone", o.from)
	}

	if o.former {
		text += ", as decided before the restart"
	}

	return text
}

// text describes an event.
func (m *machine) text(e event) string {
	actor := strings.ReplaceAll(texts[e.kind][0], "%", e.who.String())
	what := strings.NewReplacer("%", e.who.String(), "@", e.op.String()).Replace(texts[e.kind][1])

	if e.view >= 0 {
		var believed []string
		for i, l := range m.seenIn(e.view) {
			believed = append(believed, name(i+1).String()+" "+l.String())
		}

		what += "; the assigner believes: " + strings.Join(believed, ", ")
	}

	return fmt.Sprintf("%-13s  %s", actor, what)
}

func (l lease) String() string { return [...]string{"absent", "held", "released", "taken"}[l] }

func (s sight) String() string { return [sights]string{"absent", "held", "taken", "stopping"}[s] }

func (p process) String() string { return [...]string{"down", "holding off", "running", "stopping"}[p] }

func (c cached) String() string {
	return [...]string{"not mine", "mine", "draining", "acknowledging"}[c]
}

func (p ringPhase) String() string { return [...]string{"present", "being deleted", "gone"}[p] }

func (g guard) String() string {
	return [guards]string{
		neverSeen:     "has never seen the Lease",
		neverSeenFor1: "has never seen the Lease in over D",
		neverSeenFor2: "has never seen the Lease in over 2D",
		sawHeld:       "has seen it held",
		sawFree:       "has seen it free",
		vanished:      "has seen it vanish",
		vanishedFor1:  "has seen it vanish over D ago",
		vanishedFor2:  "has seen it vanish over 2D ago",
		vanishedFree:  "has seen it vanish after it was free",
	}[g]
}

// violation describes the path to a state, and the step from there that breaks the property, if it is one.
func (g *graph) violation(p Property, at int32, last *step) *Violation {
	var b strings.Builder

	fmt.Fprintf(&b, "%s\n", p)

	path := g.path(at)
	before := g.states[path[0]]
	line := func(i int, e event, after state) {
		fmt.Fprintf(&b, "%3d  %s\n%s", i, g.machine.text(e), g.machine.difference(before, after))
		before = after
	}

	for i, index := range path[1:] {
		after := g.states[index]
		line(i+1, g.eventBetween(before, after), after)
	}

	if last != nil {
		line(len(path), last.event, last.to)
	} else {
		fmt.Fprintf(&b, "This state is permanent, although nothing fails any more:\n%s", g.machine.description(before))
	}

	return &Violation{Property: p, Trace: b.String()}
}

// eventBetween returns the event that leads from one state to another.
func (g *graph) eventBetween(from, to state) event {
	for _, step := range g.machine.next(from, false) {
		if step.to == to {
			return step.event
		}
	}

	return event{view: -1}
}

// fact is one fact about a state, in words.
type fact struct{ about, is string }

// difference lists what has changed, in one indented line, or nothing if nothing interesting has changed.
func (m *machine) difference(before, after state) string {
	var changed []string

	was := m.facts(before)
	for i, f := range m.facts(after) {
		if f != was[i] {
			changed = append(changed, f.about+": "+f.is)
		}
	}

	if len(changed) == 0 {
		return ""
	}

	return indent + strings.Join(changed, "; ") + "\n"
}

// description lists all facts about a state.
func (m *machine) description(s state) string {
	var b strings.Builder

	for _, f := range m.facts(s) {
		b.WriteString(indent + f.about + ": " + f.is + "\n")
	}

	return b.String()
}

const indent = "                    "

// facts returns the facts about a state, always about the same subjects in the same order.
func (m *machine) facts(s state) []fact {
	object := s.main.shard.String()
	if s.main.drain {
		object += ", draining"
		if s.next != nobody {
			object += ", next " + s.next.String()
		}
	}

	facts := []fact{{"the object's shard", object}}
	if m.Child {
		facts = append(facts, fact{"the child's shard", s.child.String()})
	}

	if m.DeleteRing {
		facts = append(facts, fact{"the ring", s.ring.String()})
	}

	for n := name(1); int(n) <= m.Shards; n++ {
		sh, process, lease := s.at(n), s.at(n).process.String(), s.at(n).lease.String()
		if sh.frozen {
			process += ", frozen"
		}

		if sh.announced {
			lease += ", reports that its shard stops"
		}

		facts = append(facts,
			fact{"shard " + n.String(), process},
			fact{n.String() + "'s Lease", lease},
			fact{n.String() + "'s cache of the object", sh.main.String()},
			fact{n.String() + "'s worker", sh.work()},
			fact{"the rebalancer's guard about " + n.String(), sh.guard.String()},
		)
		if m.Time {
			facts = append(facts, fact{n.String() + "'s last renewal", ages[sh.since]})
		}
	}

	return facts
}

var ages = [...]string{"less than D ago", "D to 2D ago", "over 2D ago"}

// work describes what the workers of a shard are inside of.
func (s *shard) work() string {
	switch {
	case s.inMain && s.inChild:
		return "inside the object, another inside the child"
	case s.inMain:
		return "inside the object"
	case s.inChild:
		return "inside the child"
	}

	return "idle"
}
