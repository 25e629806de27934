package engine

import (
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/clusterring/clusterring/services/internal/hashring"
	"github.com/clusterring/clusterring/services/internal/membership"
)

// extent is where a pass has to look for objects of a resource: everywhere, or at the available shards that may have misplaced
// ones. It grows with each new target. It is empty after a pass over all objects has found nothing.
//
// Consider an object that was in its place at that time, or that was moved to its place since. It is misplaced in two cases:
// its partition has moved to another shard since, so that its shard has lost partitions between two targets; or its shard was
// lost in between, and a decision of that time reaches the object later. A watch finds the objects of shards that are not
// available. The pass over all objects finds the objects that a replica of the assigner with an older view has misplaced.
type extent struct {
	all    bool
	shards sets.Set[string]
}

// extentOf returns where objects may be misplaced after the target has changed.
func extentOf(before, after *Target) extent {
	if !before.Covers(after) {
		return extent{all: true}
	}

	was, is := before.View.Table(), after.View.Table()
	shards := sets.New(hashring.LosingShards(was, is)...)

	for _, name := range after.View.AvailableShards() {
		if !was.Has(name) {
			shards.Insert(name)
		}
	}

	return extent{shards: shards}
}

// add adds another extent.
func (x *extent) add(other extent) {
	x.all = x.all || other.all
	x.shards = x.shards.Union(other.shards)
}

// any reports whether a pass has to look anywhere.
func (x *extent) any() bool { return x.all || x.shards.Len() > 0 }

// among returns its available shards; all is true if these are most of the shards, so that naming them would save little.
func (x *extent) among(view *membership.View) (shards []string, all bool) {
	if x.all {
		return nil, true
	}

	available := view.AvailableShards()

	for _, name := range available {
		if x.shards.Has(name) {
			shards = append(shards, name)
		}
	}

	return shards, 2*len(shards) > len(available)
}
