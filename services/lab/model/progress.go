package model

// follow checks what follows from every state if there are no more faults and no users, nobody acts on outdated
// knowledge, and everything that remains possible eventually happens. A run then ends in a set of states that it cannot
// leave and visits repeatedly: all of these must be settled. On the way, no label and no Lease may be written in a
// circle.
func (g *graph) follow() *Violation {
	f := &follower{graph: g}
	f.edges()
	f.components()

	for at := range g.states {
		if v := f.check(int32(at)); v != nil { //nolint:gosec // states are counted in int32
			return v
		}
	}

	return nil
}

// follower finds the strongly connected components of the steps that must happen sooner or later.
type follower struct {
	*graph
	// first is where the edges of a state begin in to; those of the last state end at the end of to.
	first []int32
	to    []int32
	// component of every state. A component has a higher number than all components that can be reached from it.
	component []int32
	leaves    []bool // by component: it has an exit
}

func (f *follower) edges() {
	for at := range f.states {
		f.first = append(f.first, int32(len(f.to))) //nolint:gosec // memory ends before

		for _, step := range f.machine.next(f.states[at], true) {
			to, known := f.index[step.to]
			if !known {
				panic("a fair step leads to a state that no step leads to: " + f.machine.text(step.event))
			}

			f.to = append(f.to, to)
		}
	}

	f.first = append(f.first, int32(len(f.to))) //nolint:gosec // memory ends before
}

// components numbers the components with Tarjan's algorithm. It has its own stack, because paths are long.
func (f *follower) components() {
	const unseen = -1

	n := len(f.states)
	f.component = make([]int32, n)
	low, order := make([]int32, n), make([]int32, n)

	for i := range order {
		order[i], f.component[i] = unseen, unseen
	}

	var (
		counter    int32
		open, path []int32 // states whose component is not known; the current path
	)

	next := append([]int32(nil), f.first[:n]...)
	enter := func(v int32) {
		order[v], low[v] = counter, counter
		counter++

		open, path = append(open, v), append(path, v)
	}

	for root := range order {
		if order[root] != unseen {
			continue
		}

		enter(int32(root)) //nolint:gosec // states are counted in int32

		for len(path) > 0 {
			v := path[len(path)-1]

			if next[v] < f.first[v+1] {
				w := f.to[next[v]]
				next[v]++

				switch {
				case order[w] == unseen:
					enter(w)
				case f.component[w] == unseen:
					low[v] = min(low[v], order[w])
				}

				continue
			}

			path = path[:len(path)-1]
			if len(path) > 0 {
				up := path[len(path)-1]
				low[up] = min(low[up], low[v])
			}

			if low[v] == order[v] {
				open = f.close(open, v)
			}
		}
	}
}

// close makes a component of all open states down to the given one.
func (f *follower) close(open []int32, root int32) []int32 {
	id := int32(len(f.leaves)) //nolint:gosec // states are counted in int32
	f.leaves = append(f.leaves, false)

	for {
		v := open[len(open)-1]
		open = open[:len(open)-1]
		f.component[v] = id

		for _, w := range f.to[f.first[v]:f.first[v+1]] {
			if c := f.component[w]; c >= 0 && c != id {
				f.leaves[id] = true
			}
		}

		if v == root {
			return open
		}
	}
}

// check returns what is wrong with a state: it is never left and not settled, or something is written and undone.
func (f *follower) check(at int32) *Violation {
	c := f.component[at]

	if !f.leaves[c] {
		if s := &f.states[at]; !f.machine.settled(s) && !f.machine.hopeless(s) {
			return f.violation(Ownership, at, nil)
		}
	}

	for _, to := range f.to[f.first[at]:f.first[at+1]] {
		if f.component[to] == c && f.machine.writes(&f.states[at], &f.states[to]) {
			return f.violation(Progress, at, nil)
		}
	}

	return nil
}
