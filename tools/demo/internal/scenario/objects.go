package scenario

import (
	"maps"

	"github.com/clusterring/clusterring/tools/testkit/check"
)

// objects are the existing objects of a ring by UID, each in its newest version. ConfigMaps without an owner are not
// among them.
type objects map[string]check.Version

// after returns the objects after some more versions, in the order in which they were recorded.
func (o objects) after(versions []check.Version) objects {
	after := objects{}
	maps.Copy(after, o)

	for _, v := range versions {
		after.set(v)
	}

	return after
}

func (o objects) set(v check.Version) {
	if v.Deleted {
		delete(o, v.UID)
	} else if isObject(v) {
		o[v.UID] = v
	}
}

func isObject(v check.Version) bool {
	return v.Kind != check.Lease && (v.Kind != check.ConfigMap || v.Owner != "")
}

// at returns the number of objects that have the shard's label, or no label if shard is empty.
func (o objects) at(shard string) int { return o.count()[shard] }

// named returns the object with a kind and a name, zero if there is none.
func (o objects) named(kind, name string) check.Version {
	for _, v := range o {
		if v.Kind == kind && v.Name == name {
			return v
		}
	}

	return check.Version{}
}

// websites returns the Websites.
func (o objects) websites() objects {
	some := o.after(nil)
	maps.DeleteFunc(some, func(_ string, v check.Version) bool { return v.Kind != check.Website })

	return some
}

// count returns the number of objects of each shard that has some.
func (o objects) count() map[string]int {
	count := map[string]int{}
	for _, v := range o {
		count[v.Shard]++
	}

	return count
}

// change is a version of an object with other labels than the version before. before is zero for a new object.
type change struct{ before, after check.Version }

// moved reports whether the object left a shard: for another one, or for none.
func (c change) moved() bool {
	return c.before.Shard != "" && c.before.Shard != c.after.Shard && !c.after.Deleted
}

// String returns both versions.
func (c change) String() string { return c.before.String() + " became " + c.after.String() }

// changes returns the changes of labels, new objects, and deletions, in the order of the versions.
func (o objects) changes(versions []check.Version) []change {
	var changes []change

	now := o.after(nil)
	for _, is := range versions {
		was := now[is.UID]
		now.set(is)

		if isObject(is) && (is.Shard != was.Shard || is.Draining != was.Draining || is.Deleted || was.UID == "") {
			changes = append(changes, change{was, is})
		}
	}

	return changes
}

// moves returns the objects that have another shard afterwards.
func (o objects) moves(after objects) []change {
	var moves []change

	for uid, is := range after {
		if was, existed := o[uid]; existed && was.Shard != is.Shard {
			moves = append(moves, change{was, is})
		}
	}

	return moves
}
