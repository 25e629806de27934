// Package observe derives from the recorded versions of objects what happened to them: where they are, and how they moved.
package observe

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/clusterring/clusterring/tools/testkit/check"
)

// Objects are the existing objects of a ring by UID, each in its newest version. ConfigMaps without an owner are not among them.
type Objects map[string]check.Version

// After returns the objects after some more versions, in the order in which they were recorded.
func (o Objects) After(versions []check.Version) Objects {
	after := o.copy()
	for _, v := range versions {
		after.set(v)
	}

	return after
}

func (o Objects) copy() Objects {
	objects := Objects{}
	maps.Copy(objects, o)

	return objects
}

func (o Objects) set(v check.Version) {
	if v.Deleted {
		delete(o, v.UID)
	} else if isObject(v) {
		o[v.UID] = v
	}
}

func isObject(v check.Version) bool {
	return v.Kind != check.Lease && (v.Kind != check.ConfigMap || v.Owner != "")
}

// At returns the number of objects that have the shard's label, or no label if shard is empty.
func (o Objects) At(shard string) int {
	n := 0

	for _, v := range o {
		if v.Shard == shard {
			n++
		}
	}

	return n
}

// Named returns the object with a kind and a name, zero if there is none.
func (o Objects) Named(kind, name string) check.Version {
	for _, v := range o {
		if v.Kind == kind && v.Name == name {
			return v
		}
	}

	return check.Version{}
}

// Of returns the objects of a kind.
func (o Objects) Of(kind string) Objects {
	objects := o.copy()
	maps.DeleteFunc(objects, func(_ string, v check.Version) bool { return v.Kind != kind })

	return objects
}

// Count returns the number of objects of each of the shards, and of any other shard that has objects.
func (o Objects) Count(shards []string) map[string]int {
	count := map[string]int{}
	for _, shard := range shards {
		count[shard] = 0
	}

	for _, v := range o {
		count[v.Shard]++
	}

	return count
}

// Change is a version of an object with other labels than the version before. Before is zero for a new object.
type Change struct {
	Before, After check.Version
}

// Moved reports whether the object left a shard: for another one, or for none.
func (c Change) Moved() bool {
	return c.Before.Shard != "" && c.Before.Shard != c.After.Shard && !c.After.Deleted
}

// String returns both versions.
func (c Change) String() string { return c.Before.String() + " became " + c.After.String() }

// Changes returns the changes of labels, new objects, and deletions, in the order of the versions.
func Changes(before Objects, versions []check.Version) []Change {
	var changes []Change

	now := before.copy()
	for _, is := range versions {
		was := now[is.UID]
		now.set(is)

		if isObject(is) && (is.Shard != was.Shard || is.Draining != was.Draining || is.Deleted || was.UID == "") {
			changes = append(changes, Change{was, is})
		}
	}

	return changes
}

// Moves returns the objects that have another shard than before.
func Moves(before, after Objects) []Change {
	var moves []Change

	for uid, is := range after {
		if was, existed := before[uid]; existed && was.Shard != is.Shard {
			moves = append(moves, Change{was, is})
		}
	}

	return moves
}

// Disordered returns the changes in which an object came to a shard before all objects that it controls. Watches of different resources
// are not in step with each other: the numbers of the versions count.
func Disordered(before Objects, versions []check.Version) []string {
	var wrong []string

	versions = slices.SortedFunc(slices.Values(versions), func(a, b check.Version) int { return cmp.Compare(a.Number, b.Number) })

	all := before.copy()
	for _, v := range versions {
		all[v.UID] = v
	}

	controlled := map[string][]string{} // by the UID of the owner
	for uid, v := range all {
		controlled[v.Owner] = append(controlled[v.Owner], uid)
	}

	now := before.copy()
	for _, v := range versions {
		was := now[v.UID].Shard
		now.set(v)

		if to := now[v.UID].Shard; to == "" || to == was {
			continue
		}

		for _, uid := range controlled[v.UID] {
			if child, exists := now[uid]; exists && child.Shard != v.Shard {
				wrong = append(wrong, fmt.Sprintf("%s came to %s before %s, which was at %q", name(v), v.Shard, name(child), child.Shard))
			}
		}
	}

	return wrong
}

func name(v check.Version) string { return v.Kind + " " + v.Namespace + "/" + v.Name }
