package model

import "slices"

// machine computes the successors of states.
type machine struct {
	Scope
	*decisions

	// forgives reports for each breach whether it does not count.
	forgives [len(breaches)]bool
	// fair limits the steps to what must happen sooner or later, by processes that know the present: no faults, no users.
	fair bool
	from state
	out  []step
}

// step leads to a state.
type step struct {
	to     state
	event  event
	breaks breach
}

// event is what happens in a step, and the shards involved.
type event struct {
	kind kind
	who  name
	op   operation
	view int8 // what the assigner believed; -1: it was not reached or not asked
}

func newMachine(s Scope) (*machine, error) {
	d, err := decide(s)
	if err != nil {
		return nil, err
	}

	m := &machine{Scope: s, decisions: d}
	for i, p := range breaches {
		m.forgives[i] = slices.Contains(s.Forgiven, p)
	}

	return m, nil
}

// initial is the initial state: no object has a shard, and only the shards that do not fail run.
func (m *machine) initial() state {
	var s state

	for i := range s.shards[:m.Shards] {
		sh := &s.shards[i]
		sh.guard = neverSeenFor2

		if i >= m.Faulty {
			sh.process, sh.lease, sh.guard = running, held, sawHeld
		}
	}

	return s
}

// next returns the steps from a state. The result is valid until the next call.
func (m *machine) next(from state, fair bool) []step {
	m.from, m.fair, m.out = from, fair, m.out[:0]

	for n := name(1); int(n) <= m.Shards; n++ {
		m.process(n)
		m.work(n)
		m.lease(n)
		m.observe(n)
	}

	m.time()
	m.rebalance()
	m.leaveRing()

	if !fair {
		m.restarts()
		m.users()
	}

	return m.out
}

// emit adds a step, unless it changes nothing.
func (m *machine) emit(e event, to *state) {
	if *to != m.from {
		m.out = append(m.out, step{event: e, to: *to, breaks: m.broken(e, *to)})
	}
}

// writes reports whether labels, or the holder of a Lease, differ.
func (m *machine) writes(from, to *state) bool {
	for i, sh := range to.shards {
		if sh.lease != from.shards[i].lease {
			return true
		}
	}

	return to.main != from.main || to.child != from.child || to.ring != from.ring
}

// mainWritten must be called for every write to the main object. It drops decisions about earlier versions, because
// their writes would fail.
func (m *machine) mainWritten(to *state) {
	if m.Mutation != NoPrecondition {
		to.mainOp = operation{}
	}

	if !to.main.drain || to.main.shard == nobody {
		to.next = nobody
	}

	for i := range to.shards {
		if to.shards[i].main == acknowledging {
			to.shards[i].main = draining
		}

		to.shards[i].former.releases = false
		if !to.shards[i].former.inside() {
			to.shards[i].former = former{}
		}
	}
}

// childWritten must be called for every write to the child.
func (m *machine) childWritten(to *state) {
	if m.Mutation != NoPrecondition {
		to.childOp = operation{}
	}
}

// by returns an event of a shard.
func by(k kind, who name) event { return event{kind: k, who: who, view: -1} }

// of returns an event that concerns no shard in particular.
func of(k kind) event { return event{kind: k, view: -1} }

// doing returns an event of the rebalancer.
func doing(k kind, op operation) event { return event{kind: k, op: op, view: -1} }

// admitted calls emit with the results of a write that leaves the object without a shard label: unchanged, unless an
// assigner is certainly reached, and as changed by any assigner, with any belief.
func (m *machine) admitted(w write, certain bool, emit func(l labels, view int8)) {
	if !certain {
		emit(labels{drain: w.drain}, -1)
	}

	if m.fair {
		w.deleting = m.from.ring != present
		now := m.viewOf(&m.from)
		emit(m.answers[w][2*now].labels, now)

		return
	}

	var seen [MaxShards + 1][2]bool

	for _, w.deleting = range []bool{false, true} {
		if w.deleting != m.from.allKnow && (m.from.ring == present || m.from.allKnow) {
			continue
		}

		for _, a := range m.answers[w] {
			if drain := bit(a.drain); !seen[a.shard][drain] {
				seen[a.shard][drain] = true

				emit(a.labels, a.view)
			}
		}
	}
}

func bit(b bool) int {
	if b {
		return 1
	}

	return 0
}

// Violation is a broken property and the path to it.
type Violation struct {
	// Property is the broken property.
	Property Property
	// Trace is the path, for people.
	Trace string
}

// graph contains all reached states, in the order in which they were reached.
type graph struct {
	machine *machine
	index   map[state]int32
	states  []state
	parents []int32
	steps   int
	// happened reports for every kind of event whether it has happened.
	happened [kinds]bool
}

// explore visits every state that can be reached in the scope, nearest first, and checks the safety properties in each.
// If none is broken, it checks what follows from every state without further faults.
func explore(s Scope) (*graph, *Violation, error) {
	m, err := newMachine(s)
	if err != nil {
		return nil, nil, err
	}

	g := &graph{machine: m, index: map[state]int32{}}

	violation := g.search()
	if violation == nil {
		violation = g.follow()
	}

	return g, violation, nil
}

// search visits all states, and returns the first violation of a safety property.
func (g *graph) search() *Violation {
	g.add(g.machine.initial(), -1)

	for at := int32(0); int(at) < len(g.states); at++ {
		for _, step := range g.machine.next(g.states[at], false) {
			g.steps++
			g.happened[step.event.kind] = true

			if step.breaks != 0 {
				return g.violation(breaches[step.breaks], at, &step)
			}

			if _, known := g.index[step.to]; !known {
				g.add(step.to, at)
			}
		}
	}

	return nil
}

func (g *graph) add(s state, parent int32) {
	g.index[s] = int32(len(g.states)) //nolint:gosec // memory is exhausted before
	g.states = append(g.states, s)
	g.parents = append(g.parents, parent)
}

// depth is the number of steps to the last reached state, which is as far from the first state as any.
func (g *graph) depth() int { return len(g.path(int32(len(g.states)-1))) - 1 }

// path returns the path to a state, including the state.
func (g *graph) path(to int32) []int32 {
	if to < 0 {
		return nil
	}

	return append(g.path(g.parents[to]), to)
}
