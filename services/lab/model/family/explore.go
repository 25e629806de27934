package family

import "slices"

// Result is the result of an exploration.
type Result struct {
	// States is the number of states.
	States int
	// Violation is the first violation on a shortest path; nil if there is none.
	Violation *Violation
}

// Violation is a path to a state in which a property does not hold.
type Violation struct {
	Property Property
	// Trace contains the steps of the path.
	Trace []string
}

// visit is how a state was first reached.
type visit struct {
	from int
	what string
}

// Explore visits every state that can be reached in a scope, nearest first, until a property does not hold. It waits
// for nothing and writes nothing. Each state takes about two kilobytes.
func Explore(sc Scope) Result {
	m := machine{sc}
	first := initial(sc)
	states := []state{first}
	visits := []visit{{from: -1}}
	seen := map[state]bool{first: true}

	for at := 0; at < len(states); at++ {
		if states[at].excess() {
			return Result{len(states), &Violation{NoExcess, trace(visits, at)}}
		}

		steps := m.steps(states[at])
		if !slices.ContainsFunc(steps, func(s step) bool { return s.needed }) && !states[at].complete() {
			return Result{len(states), &Violation{NoneMissing, trace(visits, at)}}
		}

		for _, s := range steps {
			if !seen[s.to] {
				seen[s.to] = true
				states = append(states, s.to)
				visits = append(visits, visit{at, s.what})
			}
		}
	}

	return Result{States: len(states)}
}

func trace(visits []visit, at int) (steps []string) {
	for ; visits[at].from >= 0; at = visits[at].from {
		steps = append(steps, visits[at].what)
	}

	slices.Reverse(steps)

	return steps
}
