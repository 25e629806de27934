package check

import (
	"fmt"
	"maps"
	"slices"
)

// State is the stored state at the end of a run.
type State struct {
	// Versions are the newest versions of all objects, including deleted ones.
	Versions []Version
	// Available are the shards that hold their Leases.
	Available []string
	// Ring lists problems of the ring's status.
	Ring []string
}

// Final returns what is not in place: objects without an available shard or with a drain label; main objects whose work is not done or that
// have no controlled object; controlled objects with another shard than their owner; problems in the ring's status.
func Final(s State) []Violation {
	problems := slices.Clone(s.Ring)
	mains, children := map[string]Version{}, map[string]int{}

	for _, v := range s.Versions {
		if isMain(v.Kind) && !v.Deleted {
			mains[v.UID] = v
		}
	}

	for _, v := range s.Versions {
		if v.Deleted || v.Kind == Lease || v.Kind == ConfigMap && v.Owner == "" {
			continue
		}

		name := v.Kind + " " + v.Name
		if !slices.Contains(s.Available, v.Shard) {
			problems = append(problems, fmt.Sprintf("%s is at shard %q, which is not available", name, v.Shard))
		}

		if v.Draining {
			problems = append(problems, name+" is still draining")
		}

		if owner, exists := mains[v.Owner]; exists {
			children[v.Owner]++
			if owner.Shard != v.Shard {
				problems = append(problems, fmt.Sprintf("%s is at %s, its owner at %s", name, v.Shard, owner.Shard))
			}
		}
	}

	for _, uid := range slices.Sorted(maps.Keys(mains)) {
		switch got, want := children[uid], mains[uid].Replicas; {
		case mains[uid].Kind == Fleet && got != want:
			problems = append(problems, fmt.Sprintf("Fleet %s has %d Ships, not %d", mains[uid].Name, got, want))
		case mains[uid].Kind != Fleet && got == 0:
			problems = append(problems, mains[uid].Kind+" "+mains[uid].Name+" has no ConfigMap")
		}

		if !mains[uid].Complete {
			problems = append(problems, mains[uid].Kind+" "+mains[uid].Name+" does not report that the work on it is done")
		}
	}

	var found []Violation
	for _, p := range problems {
		found = append(found, Violation{Invariant: "I7", Text: p})
	}

	return found
}
