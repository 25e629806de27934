package rings

import (
	"errors"
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

// target is the target of a ring's engine, with the data that only the reconciler needs.
type target struct {
	*engine.Target

	// ring is the copy of the ring that this is the target of.
	ring *v1alpha1.ClusterRing
	// covered says of each namespace whether the ring's selector selects it.
	covered map[string]bool
	// invalid is the reason why the ring is invalid; the target then contains what can be done anyway. It is nil if the
	// ring is valid.
	invalid error
}

// targetOf returns the target of a ring. It returns an error if a selector of the ring is invalid, unless the ring is
// being deleted: a deletion needs no selector.
func targetOf(ring *v1alpha1.ClusterRing, known *resources.Resolver, view *membership.View) (*target, error) {
	s := scope.Of(ring)

	selector, err := metav1.LabelSelectorAsSelector(ring.Spec.EffectiveNamespaceSelector())
	if err != nil {
		err, selector = fmt.Errorf("spec.namespaceSelector: %w", err), labels.Nothing()
	}

	_, other := ring.Spec.ObjectRequirements()
	t := &target{
		ring: ring, invalid: errors.Join(err, other),
		Target: &engine.Target{View: view, Set: known.Resolve(s.Spec), Leaving: s.Leaving, Selector: selector},
	}

	if ring.DeletionTimestamp.IsZero() {
		return t, t.invalid
	}

	return t, nil
}

// missing returns the resources that are not served and have, or may have, labeled objects. A resource that has left
// the ring is not missing once it is gone: its objects are gone too, and so are their labels.
func (t *target) missing() []resources.Missing {
	return slices.DeleteFunc(slices.Clone(t.Set.Missing()), func(m resources.Missing) bool {
		return t.Leaving[m.GroupResource] && m.Gone()
	})
}
