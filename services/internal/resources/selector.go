package resources

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

// nothing selects no object. It stands for a selector that is not valid: services that act for a ring refuse it.
const nothing = "!invalid,invalid"

// selectorOf returns the object selector of a ring: equal texts for selectors with the same requirements.
func selectorOf(spec v1alpha1.ClusterRingSpec) string {
	requirements, err := spec.ObjectRequirements()
	if err != nil {
		return nothing
	}

	texts := make([]string, len(requirements))
	for i := range requirements {
		texts[i] = requirements[i].String()
	}

	return strings.Join(slices.Compact(texts), ",")
}

// Selector returns the selector of the main objects that the ring shards; empty for all objects.
func (s *Set) Selector() string { return s.selector }

// Selects reports whether the ring shards a main object of the resource with these labels, as far as the labels decide.
func (r Resource) Selects(has map[string]string) bool {
	if r.Selector == "" {
		return true
	}

	selector, err := labels.Parse(r.Selector)

	return err == nil && selector.Matches(labels.Set(has))
}

// Unselecting returns selectors of which at least one selects each object that the selector of the ring does not select, and which select no other
// object: one for each requirement. It returns none if the ring shards all objects.
func (r Resource) Unselecting() []string {
	requirements, err := labels.ParseToRequirements(r.Selector)
	if r.Selector == "" || err != nil {
		return nil
	}

	all := make([]string, 0, len(requirements))

	for _, is := range requirements {
		opposite := selection.DoesNotExist

		switch is.Operator() {
		case selection.In, selection.Equals, selection.DoubleEquals:
			opposite = selection.NotIn
		case selection.NotIn, selection.NotEquals:
			opposite = selection.In
		case selection.DoesNotExist:
			opposite = selection.Exists
		case selection.Exists, selection.GreaterThan, selection.LessThan: // the API of label selectors has no comparison
		}

		if not, err := labels.NewRequirement(is.Key(), opposite, is.ValuesUnsorted()); err == nil { // its parts are valid
			all = append(all, not.String())
		}
	}

	return all
}
