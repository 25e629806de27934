package rebalancer

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/rebalancer/engine"
	"github.com/clusterring/clusterring/services/rebalancer/scope"
)

// target is what the engine of a ring is to work towards.
type target struct {
	*engine.Target

	scope scope.Scope
	// invalid says what is wrong with the ring, and that the target is what can be done all the same; nil if nothing is.
	invalid error
}

// targetOf returns what the engine of a ring is to work towards. It returns an error if the ring's namespace selector is
// not valid, unless the ring is being deleted: that takes no selector.
func targetOf(ring *v1alpha1.ClusterRing, known *resources.Resolver, view *membership.View) (*target, error) {
	s := scope.Of(ring)
	t := &target{scope: s, Target: &engine.Target{View: view, Set: known.Resolve(s.Spec), Leaving: s.Leaving}}

	selector, err := metav1.LabelSelectorAsSelector(ring.Spec.EffectiveNamespaceSelector())
	if err != nil {
		t.invalid, selector = fmt.Errorf("spec.namespaceSelector: %w", err), labels.Nothing()
	}

	t.Selector = selector

	if ring.DeletionTimestamp.IsZero() {
		return t, t.invalid
	}

	return t, nil
}

// missing returns the resources that are not served and may have labelled objects, or should have. One that has left the ring
// is not missed once it is gone: its objects, and their labels, are gone with it.
func (t *target) missing() []resources.Missing {
	return slices.DeleteFunc(slices.Clone(t.Set.Missing()), func(m resources.Missing) bool {
		return t.Leaving[m.GroupResource] && m.Gone()
	})
}
