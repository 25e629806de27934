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

// keyless counts the objects of a resource that a pass over all of them has seen without their key.
type keyless struct {
	Keyless

	// target is the target of the pass; nil if there was none yet.
	target *Target
}

func (k *keyless) add(o feed.Object) {
	if k.Objects++; k.Objects == 1 {
		k.Resource, k.Example = o.GVR.GroupResource(), o.String()
	}
}

// withoutKey returns what was counted for a target, by the names of the resources; known is false if a resource of it has not been counted
// for it.
func (p *passes) withoutKey(t *Target) (found []Keyless, known bool) {
	for _, l := range p.looks {
		if !l.keyless.target.Covers(t) {
			return nil, false
		}

		if l.keyless.Objects > 0 {
			found = append(found, l.keyless.Keyless)
		}
	}

	slices.SortFunc(found, func(a, b Keyless) int { return cmp.Compare(a.Resource.String(), b.Resource.String()) })

	return found, len(p.looks) > 0
}
