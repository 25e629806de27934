// Package scope says what the labels of a ring may be on: the resources of its spec, and those that have left it and are not clean yet.
//
// It reads a ClusterRing, whose status remembers the latter, and what the API server serves of them. It asks nobody.
package scope

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/resources"
)

// Scope is what a ring's labels may be on.
type Scope struct {
	// Spec names the resources of the ring and those that have left it and may still carry labels.
	Spec v1alpha1.ClusterRingSpec
	// Leaving are the latter; all, if the ring is being deleted.
	Leaving map[schema.GroupResource]bool
	// Turning says that main objects of some resource are to be controlled ones. They leave the ring first: a shard may be working on them
	// as main objects, and only those are asked to be given up.
	Turning bool
	// remembered are those that the status names already.
	remembered sets.Set[schema.GroupResource]
}

// Of returns what the labels of a ring may be on: what its spec names, and what its status remembers. The ring is not changed.
func Of(ring *v1alpha1.ClusterRing) Scope {
	s := Scope{
		Spec:       *ring.Spec.DeepCopy(),
		Leaving:    map[schema.GroupResource]bool{},
		remembered: resources.Recorded(ring.Status.Assignment),
	}

	if ring.Status.Assignment != nil {
		s.turn(ring.Status.Assignment.Resources)

		present := groupResources(s.Spec.Resources)
		for _, old := range ring.Status.Assignment.Resources {
			s.keep(old, present)
		}
	}

	if !ring.DeletionTimestamp.IsZero() {
		for gr := range groupResources(s.Spec.Resources) {
			s.Leaving[gr] = true
		}
	}

	return s
}

// turn takes from the spec, until they have left the ring, the controlled resources that are remembered as main ones.
func (s *Scope) turn(remembered []v1alpha1.AssignedResource) {
	is := func(group, resource string) func(v1alpha1.RingResource) bool {
		return func(r v1alpha1.RingResource) bool { return r.Group == group && r.Resource == resource }
	}

	for _, old := range remembered {
		if slices.ContainsFunc(s.Spec.Resources, is(old.Group, old.Resource)) {
			continue
		}

		for i := range s.Spec.Resources {
			controlled := &s.Spec.Resources[i].ControlledResources
			before := len(*controlled)
			*controlled = slices.DeleteFunc(*controlled, func(c v1alpha1.ControlledResource) bool {
				return c.Group == old.Group && c.Resource == old.Resource
			})
			s.Turning = s.Turning || len(*controlled) < before
		}
	}
}

// keep adds what the status remembers of a resource and the spec does not name any more.
func (s *Scope) keep(old v1alpha1.AssignedResource, present map[schema.GroupResource]bool) {
	var controlled []v1alpha1.ControlledResource

	for _, c := range old.ControlledResources {
		gr := schema.GroupResource{Group: c.Group, Resource: c.Resource}
		if !present[gr] {
			s.Leaving[gr] = true
			controlled = append(controlled, c)
		}
	}

	gr := schema.GroupResource{Group: old.Group, Resource: old.Resource}
	if !present[gr] {
		s.Leaving[gr] = true
		s.Spec.Resources = append(s.Spec.Resources,
			v1alpha1.RingResource{Group: old.Group, Resource: old.Resource, ControlledResources: controlled})

		return
	}

	if len(controlled) == 0 {
		return
	}

	// The main resource stays, or has become controlled; any entry will do to carry what it controlled.
	i := max(0, slices.IndexFunc(s.Spec.Resources, func(r v1alpha1.RingResource) bool {
		return r.Group == old.Group && r.Resource == old.Resource
	}))
	s.Spec.Resources[i].ControlledResources = append(s.Spec.Resources[i].ControlledResources, controlled...)
}

func groupResources(list []v1alpha1.RingResource) map[schema.GroupResource]bool {
	all := map[schema.GroupResource]bool{}

	for _, r := range list {
		all[schema.GroupResource{Group: r.Group, Resource: r.Resource}] = true

		for _, c := range r.ControlledResources {
			all[schema.GroupResource{Group: c.Group, Resource: c.Resource}] = true
		}
	}

	return all
}

// Left returns the scope of the ring once nothing that has left it carries labels any more.
func (s *Scope) Left(ring *v1alpha1.ClusterRing) *Scope {
	return &Scope{Spec: ring.Spec, remembered: s.remembered}
}

// Remember returns what the status is to say that may carry labels: of the scope, all but what never was served. Of that, nobody
// has labelled anything; it may be a typo, and to remember it would make the ring wait for it even after it was corrected.
func (s *Scope) Remember(set *resources.Set) []v1alpha1.AssignedResource {
	never := map[schema.GroupResource]bool{}

	for _, m := range set.Missing() {
		never[m.GroupResource] = m.Absent() && !s.remembered.Has(m.GroupResource)
	}

	var (
		all     []v1alpha1.AssignedResource
		orphans []v1alpha1.ControlledResource
	)

	for _, r := range s.Spec.Resources {
		controlled := slices.DeleteFunc(slices.Clone(r.ControlledResources), func(c v1alpha1.ControlledResource) bool {
			return never[schema.GroupResource{Group: c.Group, Resource: c.Resource}]
		})

		if never[schema.GroupResource{Group: r.Group, Resource: r.Resource}] {
			orphans = append(orphans, controlled...)
			continue
		}

		all = append(all, v1alpha1.AssignedResource{Group: r.Group, Resource: r.Resource, ControlledResources: controlled})
	}

	if len(all) > 0 { // else nothing of them follows anything
		all[0].ControlledResources = append(all[0].ControlledResources, orphans...)
	}

	return all
}
