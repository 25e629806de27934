package check

import (
	"fmt"
	"maps"
	"slices"
)

// made returns the last versions of the Fleets, and the first versions of all Ships that were ever created for each. Both are by UID.
func made(versions []Version) (fleets map[string]Version, ships map[string]map[string]Version) {
	fleets, ships = map[string]Version{}, map[string]map[string]Version{}

	for _, v := range versions {
		switch v.Kind {
		case Fleet:
			fleets[v.UID] = v
		case Ship:
			if ships[v.Owner] == nil {
				ships[v.Owner] = map[string]Version{}
			}

			if _, known := ships[v.Owner][v.UID]; !known {
				ships[v.Owner][v.UID] = v
			}
		}
	}

	return fleets, ships
}

// Excess returns the total numbers of excess and missing Ships.
func Excess(versions []Version) (excess, missing int) {
	fleets, ships := made(versions)
	for uid := range fleets {
		got, want := len(ships[uid]), fleets[uid].Replicas
		excess += max(got-want, 0)
		missing += max(want-got, 0)
	}

	return excess, missing
}

// excess finds Fleets with excess Ships.
func (r Run) excess() []Violation {
	fleets, ships := made(r.Versions)

	var found []Violation

	for _, uid := range slices.Sorted(maps.Keys(fleets)) {
		fleet, made := fleets[uid], ships[uid]
		if len(made) <= fleet.Replicas {
			continue
		}

		all := slices.SortedFunc(maps.Values(made), func(a, b Version) int { return int(a.Number) - int(b.Number) }) //nolint:gosec // far from their limits
		first := all[fleet.Replicas]
		found = append(found, Violation{
			Invariant: "I9",
			Text: fmt.Sprintf("%d Ships of Fleet %s were created, but its spec demands %d; the first excess Ship is %s, in version %d",
				len(made), fleet.Name, fleet.Replicas, first.Name, first.Number),
			Excerpt: r.excerpt(first.At, first.At, append(slices.Collect(maps.Keys(made)), uid), nil),
		})
	}

	return found
}

// Moves counts the moves of Fleets to other shards.
func Moves(versions []Version) int {
	at, moves := map[string]string{}, 0

	for _, v := range versions {
		if v.Kind != Fleet || v.Shard == "" {
			continue
		}

		if before := at[v.UID]; before != "" && before != v.Shard {
			moves++
		}

		at[v.UID] = v.Shard
	}

	return moves
}
