package observe

import (
	"cmp"
	"fmt"
	"slices"
)

// Disordered returns what is wrong with the order in which controlled objects and their owners, objects of the main resource in the same
// namespace, have changed their shards, by the versions of the writes: none may leave a shard that lives while its owner is there; and no owner
// may come to a shard before all that it controls. Before is what there was when the changes began.
func Disordered(before Snapshot, changes []Change, mainResource string, alive func(shard string) bool) []string {
	now, children := Snapshot{}, map[Key]map[Key]bool{}
	ownerOf := func(key Key, s State) Key {
		return Key{Resource: mainResource, Namespace: key.Namespace, Name: s.Owner}
	}

	set := func(key Key, s State) {
		now[key] = s
		if owner := ownerOf(key, s); s.Owner != "" {
			if children[owner] == nil {
				children[owner] = map[Key]bool{}
			}

			children[owner][key] = true
		}
	}
	for key, state := range before {
		set(key, state)
	}

	var wrong []string

	for _, c := range slices.SortedFunc(slices.Values(changes), func(a, b Change) int { return cmp.Compare(a.Version, b.Version) }) {
		was := now[c.Key].Shard
		if c.Deleted {
			delete(now, c.Key)
			continue
		}
		set(c.Key, c.After)

		switch to := c.After.Shard; {
		case to == was:
		case c.After.Owner != "":
			if was != "" && alive(was) && now[ownerOf(c.Key, c.After)].Shard == was {
				wrong = append(wrong, fmt.Sprintf("%s left %s for %q before its owner did", c.Key, was, to))
			}
		case to != "" && c.Key.Resource == mainResource:
			for child := range children[c.Key] {
				if state, exists := now[child]; exists && state.Shard != to {
					wrong = append(wrong, fmt.Sprintf("%s came to %s before %s, which was at %q", c.Key, to, child, state.Shard))
				}
			}
		}
	}

	return wrong
}
