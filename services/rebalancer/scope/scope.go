// Package scope determines which resources may carry labels of a ring: the resources of its spec, and those that have
// left the spec and may still carry labels.
//
// It reads a ClusterRing, whose status remembers the latter, and what the API server serves of them. It sends no
// requests.
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
}

// Of returns the resources that may carry labels of a ring: the resources of its spec, and the resources that its
// status remembers. It does not change the ring.
func Of(ring *v1alpha1.ClusterRing) Scope {
	s := Scope{Spec: *ring.Spec.DeepCopy(), Leaving: map[schema.GroupResource]bool{}}
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

	// The main resource stays, or has become controlled. Any entry may list what it controlled.
	i := max(0, slices.IndexFunc(s.Spec.Resources, func(r v1alpha1.RingResource) bool {
		return r.Group == old.Group && r.Resource == old.Resource
	}))
	s.Spec.Resources[i].ControlledResources = append(s.Spec.Resources[i].ControlledResources, controlled...)
}

// Remember returns the resources that the status lists as possibly labeled: all resources of the ring's scope, whose
// set is given, but not those that were never served, and not those that have left the ring and are converged, which
// means that a pass has found every object in its place; nil: none is. Nothing has labeled objects of a resource that
// was never served. It may be a typo, and the ring would wait for it even after a correction. A resource that has left
// stays while it is unknown whether it is served. A converged main resource of the ring gets the fingerprint.
func Remember(
	ring *v1alpha1.ClusterRing, set *resources.Set, converged func(schema.GroupResource) bool, fingerprint string,
) []v1alpha1.AssignedResource {
	s, recorded := Of(ring), resources.Recorded(ring.Status.Assignment)
	never, unknown := sets.New[schema.GroupResource](), sets.New[schema.GroupResource]()

	for _, m := range set.Missing() {
		if m.Absent() && !recorded.Has(m.GroupResource) {
			never.Insert(m.GroupResource)
		}

		if !m.Gone() {
			unknown.Insert(m.GroupResource)
		}
	}

	done := func(gr schema.GroupResource) bool { return converged != nil && converged(gr) }
	over := func(gr schema.GroupResource) bool {
		return never.Has(gr) || s.Leaving[gr] && !unknown.Has(gr) && done(gr)
	}

	var (
		all     []v1alpha1.AssignedResource
		orphans []v1alpha1.ControlledResource
	)

	for _, r := range s.Spec.Resources {
		gr := schema.GroupResource{Group: r.Group, Resource: r.Resource}
		controlled := slices.DeleteFunc(slices.Clone(r.ControlledResources), func(c v1alpha1.ControlledResource) bool {
			return over(schema.GroupResource{Group: c.Group, Resource: c.Resource})
		})

		if never.Has(gr) || over(gr) && len(controlled) == 0 {
			orphans = append(orphans, controlled...)
			continue
		}

		kept := v1alpha1.AssignedResource{Group: r.Group, Resource: r.Resource, Key: r.Key, ControlledResources: controlled}
		if _, _, served := set.Find(gr); served && !s.Leaving[gr] && done(gr) {
			kept.Fingerprint = fingerprint
		}

		all = append(all, kept)
	}

	if len(all) > 0 { // otherwise nothing of them follows anything
		all[0].ControlledResources = append(all[0].ControlledResources, orphans...)
	}

	return all
}
