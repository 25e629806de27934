package engine

import (
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/clusterring/clusterring/services/internal/hashring"
	"github.com/clusterring/clusterring/services/internal/membership"
)

// extent is where a pass has to look: the available shards at which objects may be misplaced. It grows from one target to the next until a pass
// over all objects has found nothing, when it is empty.
//
// An object that was in place then, or was put in place since, is misplaced if its partition has gone to another shard since: its shard is one of
// those that have lost partitions from some target to the next. Or its shard was lost in between, and what was decided meanwhile has not reached
// the object. Objects of shards that are not available are found by the watch for those. What a replica of the assigner with an older view
// misplaces is none of these; that is what the pass over all objects is for.
type extent struct {
	// notAll says that it is the shards alone, and not any shard; so the zero value is everywhere.
	notAll bool
	shards sets.Set[string]
	// kin says that objects which follow others may be misplaced there by themselves. When partitions go from shard to shard those follow their
	// owners, who have them looked for.
	kin bool
}

// extentOf returns where objects may be misplaced because one target has followed another.
func extentOf(before, after *Target) extent {
	if !before.Covers(after) {
		return extent{}
	}

	was, is := before.View.Table(), after.View.Table()
	shards := sets.New(hashring.LosingShards(was, is)...)

	for _, name := range after.View.AvailableShards() {
		if !was.Has(name) {
			shards.Insert(name)
		}
	}

	return extent{notAll: true, shards: shards}
}

// add adds another extent.
func (x *extent) add(other extent) {
	x.notAll = x.notAll && other.notAll
	x.shards = x.shards.Union(other.shards)
	x.kin = x.kin || other.kin
}

// addAll makes it everywhere.
func (x *extent) addAll() { *x = extent{} }

// addShards adds some shards, for whatever they have.
func (x *extent) addShards(names []string) {
	if len(names) > 0 {
		x.shards = x.shards.Union(sets.New(names...))
		x.kin = true
	}
}

// owners reports whether main objects alone may be misplaced.
func (x *extent) owners() bool { return x.notAll && !x.kin }

// any reports whether a pass has to look anywhere.
func (x *extent) any() bool { return !x.notAll || x.shards.Len() > 0 }

// clear makes it empty.
func (x *extent) clear() { *x = extent{notAll: true} }

// among returns the shards of it that are available; all if it is most of them, so that naming them would be of little use.
func (x *extent) among(view *membership.View) (shards []string, all bool) {
	available := view.AvailableShards()

	if !x.notAll {
		return nil, true
	}

	for _, name := range available {
		if x.shards.Has(name) {
			shards = append(shards, name)
		}
	}

	return shards, 2*len(shards) > len(available)
}
