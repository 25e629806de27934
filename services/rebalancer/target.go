package rebalancer

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/rebalancer/engine"
)

// scope is what a ring's labels may be on.
type scope struct {
	// spec names the resources of the ring and those that have left it and may still carry labels.
	spec v1alpha1.ClusterRingSpec
	// leaving are the latter; all, if the ring is being deleted.
	leaving map[schema.GroupResource]bool
}

// scopeOf returns what the labels of a ring may be on: what its spec names, and what its status remembers.
func scopeOf(ring *v1alpha1.ClusterRing) scope {
	s := scope{spec: *ring.Spec.DeepCopy(), leaving: map[schema.GroupResource]bool{}}
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
func (s *scope) keep(old v1alpha1.RingResource, present map[schema.GroupResource]bool) {
	var controlled []v1alpha1.ControlledResource

	for _, c := range old.ControlledResources {
		if gr := (schema.GroupResource{Group: c.Group, Resource: c.Resource}); !present[gr] {
			s.leaving[gr] = true
			controlled = append(controlled, c)
		}
	}

	gr := schema.GroupResource{Group: old.Group, Resource: old.Resource}
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

// target is what the engine of a ring is to work towards, with the resources of its scope.
type target struct {
	*engine.Target
	resources []v1alpha1.RingResource
}

// targetOf returns what the engine of a ring is to work towards. It returns an error if the ring's namespace selector is
// not valid.
func targetOf(ring *v1alpha1.ClusterRing, s scope, mapper meta.RESTMapper, view *membership.View) (*target, error) {
	selector, err := metav1.LabelSelectorAsSelector(ring.Spec.EffectiveNamespaceSelector())
	if err != nil {
		return nil, fmt.Errorf("spec.namespaceSelector: %w", err)
	}

	return &target{resources: s.spec.Resources, Target: &engine.Target{
		View:     view,
		Set:      resources.Resolve(mapper, s.spec),
		Leaving:  s.leaving,
		Selector: selector,
	}}, nil
}

// missing returns the resources of the spec that the API server does not serve. One that has left the ring is not missed:
// its objects, and their labels, are gone with it.
func (t *target) missing() []resources.Missing {
	return slices.DeleteFunc(slices.Clone(t.Set.Missing()), func(m resources.Missing) bool {
		return t.Leaving[m.GroupResource] && meta.IsNoMatchError(m.Err)
	})
}

// next says when to look again, if nothing happens: while a resource is missing, nobody else tells that it is there.
func (t *target) next() reconcile.Result {
	if len(t.missing()) > 0 {
		return reconcile.Result{RequeueAfter: lookAgain}
	}

	return reconcile.Result{}
}
