package observe

import "fmt"

// Undrained returns what is wrong with moves away from shards that are alive: each has to begin with the drain label on the
// object. Controlled objects need none, for they follow their owner: see EarlyChildren.
func Undrained(changes []Change, alive func(shard string) bool) []string {
	var wrong []string
	for _, c := range changes {
		if c.Moved() && c.Before.Owner == "" && !c.Before.Draining && alive(c.Before.Shard) {
			wrong = append(wrong, fmt.Sprintf("%s went from %s to %q without having been drained", c.Key, c.Before.Shard, c.After.Shard))
		}
	}
	return wrong
}

// EarlyChildren returns what is wrong with controlled objects: each may get the label of a shard, or lose that of its own, only
// after its owner, an object of the main resource in the same namespace, did, by the versions of the two writes. Before is
// what main objects had when the changes began.
func EarlyChildren(before Snapshot, changes []Change, mainResource string) []string {
	type owner struct{ namespace, name, shard string }
	arrived := map[owner]uint64{}
	for key, state := range before {
		if key.Resource == mainResource {
			arrived[owner{key.Namespace, key.Name, state.Shard}] = 0
		}
	}
	for _, c := range changes {
		if c.Key.Resource != mainResource || c.After.Shard == "" && !c.Moved() {
			continue // one that is created without a shard has not lost any
		}
		key := owner{c.Key.Namespace, c.Key.Name, c.After.Shard}
		if _, known := arrived[key]; !known {
			arrived[key] = c.Version
		}
	}
	var wrong []string
	for _, c := range changes {
		if c.Deleted || c.After.Owner == "" || c.After.Shard == c.Before.Shard {
			continue
		}
		at, did := arrived[owner{c.Key.Namespace, c.After.Owner, c.After.Shard}]
		if !did || at > c.Version {
			wrong = append(wrong, fmt.Sprintf("%s went from %q to %q before its owner", c.Key, c.Before.Shard, c.After.Shard))
		}
	}
	return wrong
}

// Moves is what a comparison of two snapshots has found.
type Moves struct {
	// Moved is the number of objects that were there before and have another shard now.
	Moved int
	// To counts them by where they are now.
	To map[string]int
	// Wrong lists moves that should not have been, at most a few of them in words.
	Wrong []string
}

// Compare finds what moved between two snapshots, and calls may for each object that did: whether it may have.
func Compare(before, after Snapshot, may func(from, to string) bool) Moves {
	m := Moves{To: map[string]int{}}
	for key, was := range before {
		is, there := after[key]
		if !there || is.Shard == was.Shard {
			continue
		}
		m.Moved++
		m.To[is.Shard]++
		if !may(was.Shard, is.Shard) {
			m.Wrong = append(m.Wrong, fmt.Sprintf("%s went from %s to %q", key, was.Shard, is.Shard))
		}
	}
	return m
}
