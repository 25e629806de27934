package engine

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/clusterring/clusterring/services/rebalancer/feed"
)

// Keyless is how many objects of a resource lack the label that is their key.
type Keyless struct {
	Resource schema.GroupResource
	Objects  int
	// Example is one of them.
	Example string
}

// keyless counts the objects that a pass over all objects has seen without their key.
type keyless struct {
	// target is the target of the pass; nil if there was none yet.
	target *Target
	found  []Keyless
}

func (k *keyless) add(o feed.Object) {
	gr := o.GVR.GroupResource()

	i := slices.IndexFunc(k.found, func(of Keyless) bool { return of.Resource == gr })
	if i < 0 {
		i = len(k.found)
		k.found = append(k.found, Keyless{Resource: gr, Example: o.String()})
	}

	k.found[i].Objects++
}

// report returns what was counted for a target, by the names of the resources; known is false if no pass has ended that counts for it.
func (k *keyless) report(t *Target) (found []Keyless, known bool) {
	if !k.target.Covers(t) {
		return nil, false
	}

	return slices.SortedFunc(slices.Values(k.found), func(a, b Keyless) int {
		return cmp.Compare(a.Resource.String(), b.Resource.String())
	}), true
}
