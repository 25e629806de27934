package work

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Problem is how many objects of a resource are not released in time, cannot be written, or cannot move now.
type Problem struct {
	Resource schema.GroupResource
	Objects  int
}

// Problems returns the resources with such objects, those with most of them first.
func (t *Table) Problems() (all []Problem) {
	counts := map[schema.GroupResource]int{}

	for _, e := range t.entries {
		if c := e.counted; c.late || c.failing || c.blocked {
			counts[e.object.GVR.GroupResource()]++
		}
	}

	for of, n := range counts {
		all = append(all, Problem{Resource: of, Objects: n})
	}

	slices.SortFunc(all, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(b.Objects, a.Objects), cmp.Compare(a.Resource.String(), b.Resource.String()))
	})

	return all
}
