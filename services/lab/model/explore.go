package model

import (
	"fmt"
)

// Result is the result of an exploration.
type Result struct {
	// States is the number of different states, Steps is the number of steps between them, and Depth is the length of the
	// longest of the shortest paths to a state.
	States, Steps, Depth int
	// Violation is the first violation, on a shortest path; nil if there is none.
	Violation *Violation
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
	index   map[packed]int32
	states  []packed
	parents []int32
	steps   int
	// happened reports for every kind of event whether it has happened.
	happened [kinds]bool
}

// Explore visits every state that can be reached in the scope, nearest first, and checks the safety properties in each.
// If none is broken, it checks what follows from every state without further faults. It returns an error if the scope
// is not valid.
func Explore(s Scope) (*Result, error) {
	g, violation, err := explore(s)
	if err != nil {
		return nil, err
	}

	return &Result{States: len(g.states), Steps: g.steps, Depth: g.depth(), Violation: violation}, nil
}

func explore(s Scope) (*graph, *Violation, error) {
	if err := s.validate(); err != nil {
		return nil, nil, err
	}

	m, err := newMachine(s)
	if err != nil {
		return nil, nil, err
	}

	g := &graph{machine: m, index: map[packed]int32{}}

	violation := g.search()
	if violation == nil {
		violation = g.follow()
	}

	return g, violation, nil
}

func (s Scope) validate() error {
	switch {
	case s.Shards < 1 || s.Shards > MaxShards:
		return fmt.Errorf("scope %q: %d shards: there can be 1 to %d", s.Name, s.Shards, MaxShards)
	case s.Faulty < 0 || s.Faulty > s.Shards:
		return fmt.Errorf("scope %q: %d of %d shards are faulty", s.Name, s.Faulty, s.Shards)
	case (s.Freeze || s.DeleteLease || s.Pods || s.Slots) && !s.Time:
		return fmt.Errorf("scope %q: Freeze, DeleteLease, Pods, and Slots need Time", s.Name)
	}

	return nil
}

// search visits all states, and returns the first violation of a safety property.
func (g *graph) search() *Violation {
	g.add(pack(g.machine.initial()), -1)

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

func (g *graph) add(s packed, parent int32) {
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
