package scenario

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/clusterring/clusterring/tools/testkit/check"
)

// objects are the existing objects of a ring by UID, each in its newest version. ConfigMaps without an owner are not
// among them.
type objects map[string]check.Version

// after returns the objects after some more versions, in the order in which they were recorded.
func (o objects) after(versions []check.Version) objects {
	after := o.copy()
	for _, v := range versions {
		after.set(v)
	}

	return after
}

func (o objects) copy() objects {
	all := objects{}
	maps.Copy(all, o)

	return all
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
	some := o.copy()
	maps.DeleteFunc(some, func(_ string, v check.Version) bool { return v.Kind != check.Website })

	return some
}

// count returns the number of objects of each of the shards, and of any other shard that has objects.
func (o objects) count(shards ...string) spread {
	count := spread{}
	for _, shard := range shards {
		count[shard] = 0
	}

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

	now := o.copy()
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

// disordered returns the changes in which an object came to a shard before all objects that it controls. Watches of
// different resources are not in step with each other: the numbers of the versions count.
func (o objects) disordered(versions []check.Version) []string {
	var wrong []string

	versions = slices.SortedFunc(slices.Values(versions),
		func(a, b check.Version) int { return cmp.Compare(a.Number, b.Number) })

	all := o.copy()
	for _, v := range versions {
		all[v.UID] = v
	}

	controlled := map[string][]string{} // by the UID of the owner
	for uid, v := range all {
		controlled[v.Owner] = append(controlled[v.Owner], uid)
	}

	now := o.copy()
	for _, v := range versions {
		was := now[v.UID].Shard
		now.set(v)

		if to := now[v.UID].Shard; to == "" || to == was {
			continue
		}

		for _, uid := range controlled[v.UID] {
			if child, exists := now[uid]; exists && child.Shard != v.Shard {
				wrong = append(wrong,
					fmt.Sprintf("%s came to %s before %s, which was at %q", name(v), v.Shard, name(child), child.Shard))
			}
		}
	}

	return wrong
}

func name(v check.Version) string { return v.Kind + " " + v.Namespace + "/" + v.Name }

// spread is the number of objects of each shard. It contains shards without objects, too.
type spread map[string]int

// total returns the number of objects.
func (s spread) total() int {
	total := 0
	for _, n := range s {
		total += n
	}

	return total
}

// evenness returns the maximum number of objects per shard, relative to the mean: 1 is perfect. bound is the acceptable
// maximum: the ring gives each shard at most 1.05 times its ideal share of the hash space, and the numbers of random
// keys deviate from the shares by three standard deviations.
func (s spread) evenness() (maxToMean, bound float64) {
	const overIdeal, deviations = 1.05, 3

	total := float64(s.total())
	if total == 0 {
		return 0, overIdeal
	}

	p := 1 / float64(len(s))
	mean := total * p

	return float64(slices.Max(slices.Collect(maps.Values(s)))) / mean, overIdeal + deviations*math.Sqrt(total*p*(1-p))/mean
}

// String returns the figures in one line.
func (s spread) String() string {
	maxToMean, bound := s.evenness()

	return fmt.Sprintf("%d objects over %d shards, max/mean %.2f (bound %.2f)", s.total(), len(s), maxToMean, bound)
}
