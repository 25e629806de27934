package move

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/resources"
)

// ScopeOf returns the resources that may carry labels of a ring: those of its spec, and those that its status
// remembers, because they have left the spec. The leaving ones are the latter; all if the ring is being deleted. It
// does not change the ring.
func ScopeOf(ring *v1alpha1.ClusterRing) (spec v1alpha1.ClusterRingSpec, leaving map[schema.GroupResource]bool) {
	spec, leaving = *ring.Spec.DeepCopy(), map[schema.GroupResource]bool{}
	left := resources.Recorded(ring.Status.Assignment).Difference(resources.Named(spec.Resources))

	for _, old := range cmp.Or(ring.Status.Assignment, &v1alpha1.AssignmentStatus{}).Resources {
		var controlled []v1alpha1.ControlledResource

		for _, c := range old.ControlledResources {
			if left.Has(schema.GroupResource(c)) {
				controlled = append(controlled, c)
			}
		}

		if left.Has(schema.GroupResource{Group: old.Group, Resource: old.Resource}) {
			spec.Resources = append(spec.Resources,
				v1alpha1.RingResource{Group: old.Group, Resource: old.Resource, ControlledResources: controlled})
		} else { // any entry may list what it controlled
			spec.Resources[0].ControlledResources = append(spec.Resources[0].ControlledResources, controlled...)
		}
	}

	if !ring.DeletionTimestamp.IsZero() {
		spec.ObjectSelector, left = nil, resources.Named(spec.Resources) // all objects leave the ring
	}

	for gr := range left {
		leaving[gr] = true
	}

	return spec, leaving
}

// Remember returns the resources that the status lists as possibly labeled: all resources of the ring's scope, whose
// set is given, but not those that were never served, and not those that have left the ring and are converged, which
// means that a pass has found every object in its place. Nothing has labeled objects of a resource that was never
// served. It may be a typo, and the ring would wait for it even after a correction. A resource that has left stays
// while it is unknown whether it is served. A converged main resource of the ring gets the fingerprint.
func Remember(
	ring *v1alpha1.ClusterRing, set *resources.Set, converged func(schema.GroupResource) bool, fingerprint string,
) (all []v1alpha1.AssignedResource) {
	spec, leaving := ScopeOf(ring)
	recorded := resources.Recorded(ring.Status.Assignment)
	never, unknown := sets.New[schema.GroupResource](), sets.New[schema.GroupResource]()

	for _, m := range set.Missing() {
		if m.Absent() && !recorded.Has(m.GroupResource) {
			never.Insert(m.GroupResource)
		}

		if !m.Gone() {
			unknown.Insert(m.GroupResource)
		}
	}

	over := func(gr schema.GroupResource) bool {
		return never.Has(gr) || leaving[gr] && !unknown.Has(gr) && converged(gr)
	}

	var orphans []v1alpha1.ControlledResource

	for _, r := range spec.Resources {
		gr := schema.GroupResource{Group: r.Group, Resource: r.Resource}
		kept := v1alpha1.AssignedResource{Group: r.Group, Resource: r.Resource, Key: r.Key}
		kept.ControlledResources = slices.DeleteFunc(r.ControlledResources, func(c v1alpha1.ControlledResource) bool {
			return over(schema.GroupResource(c))
		})

		if never.Has(gr) || over(gr) && len(kept.ControlledResources) == 0 {
			orphans = append(orphans, kept.ControlledResources...)
			continue
		}

		if _, _, served := set.Find(gr); served && !leaving[gr] && converged(gr) {
			kept.Fingerprint = fingerprint
		}

		all = append(all, kept)
	}

	if len(all) > 0 { // otherwise nothing of them follows anything
		all[0].ControlledResources = append(all[0].ControlledResources, orphans...)
	}

	return all
}
