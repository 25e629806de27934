// Package scope determines which resources may carry labels of a ring: the resources of its spec, and those that have left the
// spec and may still carry labels.
//
// It reads a ClusterRing, whose status remembers the latter, and what the API server serves of them. It sends no requests.
package scope

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/resources"
)

// Scope contains the resources that may carry labels of a ring.
type Scope struct {
	// Spec lists the resources of the ring, and the resources that have left it and may still carry labels.
	Spec v1alpha1.ClusterRingSpec
	// Leaving are the resources that have left the ring; all resources if the ring is being deleted.
	Leaving map[schema.GroupResource]bool
	// remembered are the resources that the status already lists.
	remembered sets.Set[schema.GroupResource]
}

// Of returns the resources that may carry labels of a ring: the resources of its spec, and the resources that its status
// remembers. It does not change the ring.
func Of(ring *v1alpha1.ClusterRing) Scope {
	s := Scope{
		Spec:       *ring.Spec.DeepCopy(),
		Leaving:    map[schema.GroupResource]bool{},
		remembered: resources.Recorded(ring.Status.Assignment),
	}
	present := resources.Named(s.Spec.Resources)

	if ring.Status.Assignment != nil {
		for _, old := range ring.Status.Assignment.Resources {
			s.keep(old, present)
		}
	}

	if !ring.DeletionTimestamp.IsZero() {
		s.Spec.ObjectSelector = nil // all objects leave the ring

		for gr := range resources.Named(s.Spec.Resources) {
			s.Leaving[gr] = true
		}
	}

	return s
}

// keep adds what the status remembers about a resource and the spec no longer names.
func (s *Scope) keep(old v1alpha1.AssignedResource, present sets.Set[schema.GroupResource]) {
	var controlled []v1alpha1.ControlledResource

	for _, c := range old.ControlledResources {
		gr := schema.GroupResource{Group: c.Group, Resource: c.Resource}
		if !present.Has(gr) {
			s.Leaving[gr] = true

			controlled = append(controlled, c)
		}
	}

	gr := schema.GroupResource{Group: old.Group, Resource: old.Resource}
	if !present.Has(gr) {
		s.Leaving[gr] = true
		s.Spec.Resources = append(s.Spec.Resources,
			v1alpha1.RingResource{Group: old.Group, Resource: old.Resource, ControlledResources: controlled})

		return
	}

	if len(controlled) == 0 {
		return
	}

	// The main resource stays, or has become controlled. Any entry may list what it controlled.
	i := max(0, slices.IndexFunc(s.Spec.Resources, func(r v1alpha1.RingResource) bool {
		return r.Group == old.Group && r.Resource == old.Resource
	}))
	s.Spec.Resources[i].ControlledResources = append(s.Spec.Resources[i].ControlledResources, controlled...)
}

// Converged returns the resources that the status lists as possibly labeled, given those of which a pass has found every object in
// its place: the resources of the ring's spec, and remembered ones that have left it, without those that are converged and can be
// read, or are gone. A converged main resource of the spec gets the fingerprint. The set is the set of the ring's scope.
func Converged(
	ring *v1alpha1.ClusterRing, set *resources.Set, converged func(schema.GroupResource) bool, fingerprint string,
) []v1alpha1.AssignedResource {
	leaving, keep := Of(ring).Leaving, map[schema.GroupResource]bool{}
	for gr := range leaving {
		keep[gr] = !converged(gr)
	}

	for _, m := range set.Missing() {
		keep[m.GroupResource] = !leaving[m.GroupResource] || !m.Gone() || keep[m.GroupResource]
	}

	ring = ring.DeepCopy()
	if a := ring.Status.Assignment; a != nil {
		a.Resources = keptOf(a.Resources, keep)
	}

	s := Of(ring)
	all := s.Remember(set)

	if !ring.DeletionTimestamp.IsZero() {
		return keptOf(all, keep)
	}

	for i := range all {
		gr := schema.GroupResource{Group: all[i].Group, Resource: all[i].Resource}
		if _, _, served := set.Find(gr); served && !leaving[gr] && converged(gr) {
			all[i].Fingerprint = fingerprint
		}
	}

	return all
}

// keptOf returns the remembered resources that are in which, and a main resource for each of them that is controlled.
func keptOf(remembered []v1alpha1.AssignedResource, which map[schema.GroupResource]bool) (kept []v1alpha1.AssignedResource) {
	for _, r := range remembered {
		r.ControlledResources = slices.DeleteFunc(slices.Clone(r.ControlledResources), func(c v1alpha1.ControlledResource) bool {
			return !which[schema.GroupResource{Group: c.Group, Resource: c.Resource}]
		})

		if len(r.ControlledResources) > 0 || which[schema.GroupResource{Group: r.Group, Resource: r.Resource}] {
			kept = append(kept, r)
		}
	}

	return kept
}

// Remember returns the resources that the status lists as possibly labeled: all resources of the scope, except those that were
// never served. Nothing has labeled objects of such a resource. It may be a typo, and the ring would wait for it even after a
// correction.
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

		all = append(all, v1alpha1.AssignedResource{Group: r.Group, Resource: r.Resource, ControlledResources: controlled, Key: r.Key})
	}

	if len(all) > 0 { // otherwise nothing of them follows anything
		all[0].ControlledResources = append(all[0].ControlledResources, orphans...)
	}

	return all
}
