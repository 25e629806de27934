package observe

import "fmt"

// Undrained returns what is wrong with moves away from shards that are alive: each has to begin with the drain label on the
// object. Controlled objects need none, for they go with their owner: see Disordered.
func Undrained(changes []Change, alive func(shard string) bool) []string {
	var wrong []string

	for _, c := range changes {
		if c.Moved() && c.Before.Owner == "" && !c.Before.Draining && alive(c.Before.Shard) {
			wrong = append(wrong, fmt.Sprintf("%s went from %s to %q without having been drained", c.Key, c.Before.Shard, c.After.Shard))
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
