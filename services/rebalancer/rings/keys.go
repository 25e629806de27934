package rings

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/rebalancer/engine"
)

// keysFound returns the condition KeysFound; nil if every object has the key of its name.
func keysFound(t *target, r engine.Report) *metav1.Condition {
	keyed := slices.DeleteFunc(t.Set.Keyed(), func(r resources.Resource) bool { return t.Leaving[r.GroupResource()] })
	if len(keyed) == 0 {
		return nil
	}

	c := &metav1.Condition{Type: v1alpha1.ConditionKeysFound, Status: metav1.ConditionFalse}

	var clusterScoped, lacking []string

	for _, resource := range keyed {
		gr := resource.GroupResource()
		if resource.Key.Namespace && !resource.Namespaced && !resource.IsNamespaces() {
			clusterScoped = append(clusterScoped, gr.String())
		}

		for _, of := range r.Keyless {
			if of.Resource == gr && resource.Key.Label != "" {
				lacking = append(lacking,
					fmt.Sprintf("%d objects of %s lack %s, such as %s", of.Objects, gr, resource.Key, of.Example))
			}
		}
	}

	switch {
	case len(clusterScoped) > 0:
		c.Reason = v1alpha1.ReasonNotNamespaced
		c.Message = strings.Join(append([]string{fmt.Sprintf("the key of %s is the namespace, but they are cluster-scoped; "+
			"their objects are assigned by their names: remove the key, or use a label",
			strings.Join(clusterScoped, ", "))}, lacking...), "; ")
	case len(lacking) > 0:
		c.Reason = v1alpha1.ReasonLabelsMissing
		c.Message = strings.Join(lacking, "; ") + "; these objects are assigned by their names, and not with the objects " +
			"that they belong to: add the label"
	case !r.KeylessKnown:
		c.Status, c.Reason = metav1.ConditionUnknown, v1alpha1.ReasonKeysUnknown
		c.Message = "the objects have not all been seen since the keys changed"
	default:
		c.Status, c.Reason = metav1.ConditionTrue, v1alpha1.ReasonAllKeysFound
		c.Message = "every object had its key when the objects were last seen"
	}

	return c
}
