package simulation

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/resources"
)

// scope is what a ring's labels may be on.
type scope struct {
	// spec names the resources of the ring and those that have left it and may still carry labels.
	spec v1alpha1.ClusterRingSpec
	// leaving are the latter; all, if the ring is being deleted.
	leaving map[schema.GroupResource]bool
	// remembered are those that the status names already.
	remembered map[schema.GroupResource]bool
}

// scopeOf returns what the labels of a ring may be on: what its spec names, and what its status remembers.
func scopeOf(ring *v1alpha1.ClusterRing) scope {
	s := scope{
		spec:       *ring.Spec.DeepCopy(),
		leaving:    map[schema.GroupResource]bool{},
		remembered: map[schema.GroupResource]bool{},
	}
	present := groupResources(s.spec.Resources)

	if ring.Status.Assignment != nil {
		for _, old := range ring.Status.Assignment.Resources {
			s.keep(old, present)
		}
	}

	if !ring.DeletionTimestamp.IsZero() {
		for gr := range groupResources(s.spec.Resources) {
			s.leaving[gr] = true
		}
	}

	return s
}

// keep adds what the status remembers of a resource and the spec does not name any more.
func (s *scope) keep(old v1alpha1.AssignedResource, present map[schema.GroupResource]bool) {
	var controlled []v1alpha1.ControlledResource

	for _, c := range old.ControlledResources {
		gr := schema.GroupResource{Group: c.Group, Resource: c.Resource}
		s.remembered[gr] = true

		if !present[gr] {
			s.leaving[gr] = true
			controlled = append(controlled, c)
		}
	}

	gr := schema.GroupResource{Group: old.Group, Resource: old.Resource}
	s.remembered[gr] = true

	if !present[gr] {
		s.leaving[gr] = true
		s.spec.Resources = append(s.spec.Resources,
			v1alpha1.RingResource{Group: old.Group, Resource: old.Resource, ControlledResources: controlled})

		return
	}

	if len(controlled) == 0 {
		return
	}

	// The main resource stays, or has become controlled; any entry will do to carry what it controlled.
	i := max(0, slices.IndexFunc(s.spec.Resources, func(r v1alpha1.RingResource) bool {
		return r.Group == old.Group && r.Resource == old.Resource
	}))
	s.spec.Resources[i].ControlledResources = append(s.spec.Resources[i].ControlledResources, controlled...)
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

// remember returns what the status is to say that may carry labels: of the scope, all but what never was served. Of that, nobody
// has labelled anything; it may be a typo, and to remember it would make the ring wait for it even after it was corrected.
func (s *scope) remember(set *resources.Set) []v1alpha1.AssignedResource {
	never := map[schema.GroupResource]bool{}

	for _, m := range set.Missing() {
		never[m.GroupResource] = m.Absent() && !s.remembered[m.GroupResource]
	}

	var (
		all     []v1alpha1.AssignedResource
		orphans []v1alpha1.ControlledResource
	)

	for _, r := range s.spec.Resources {
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
