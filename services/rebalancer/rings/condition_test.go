package rings

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/hashring"
	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/rebalancer/engine"
	"github.com/clusterring/clusterring/services/rebalancer/scope"
	"github.com/clusterring/clusterring/services/rebalancer/work"
)

// Resources that have left the ring are forgotten, although another resource of the ring is missing.
func TestATypoHoldsUpNothingElse(t *testing.T) {
	main := func(name string, controlled ...string) v1alpha1.RingResource {
		r := v1alpha1.RingResource{Resource: name}
		for _, c := range controlled {
			r.ControlledResources = append(r.ControlledResources, v1alpha1.ControlledResource{Resource: c})
		}

		return r
	}

	served := meta.NewDefaultRESTMapper(nil)
	for _, kind := range []string{"Pod", "Service", "Secret"} {
		served.Add(schema.GroupVersionKind{Version: "v1", Kind: kind}, meta.RESTScopeNamespace)
	}

	r := &v1alpha1.ClusterRing{Spec: v1alpha1.ClusterRingSpec{Resources: []v1alpha1.RingResource{main("pods", "services"), main("typos")}}}
	r.Status.Assignment = &v1alpha1.AssignmentStatus{Resources: []v1alpha1.AssignedResource{{Resource: "pods"}, {Resource: "secrets"}}}

	s := scope.Of(r)
	reached := &target{scope: s, Target: &engine.Target{
		View: membership.NewView("r", nil, hashring.NewCache(1)), Set: resources.Resolve(served, s.Spec), Leaving: s.Leaving, Selector: labels.Everything(),
	}}

	a := assignment(r, reached, engine.Report{Converged: true})
	require.Empty(t, a.Fingerprint, "a resource is missing")
	require.Equal(t, []v1alpha1.AssignedResource{{
		Resource: "pods", ControlledResources: []v1alpha1.ControlledResource{{Resource: "services"}}, Fingerprint: reached.View.Fingerprint(),
	}}, a.Resources)

	a = assignment(r, reached, engine.Report{})
	require.Len(t, a.Resources, 2, "resources that have left may still carry labels")
}

// Objects that cannot be written stay where they are until somebody acts. That is no move.
func TestObjectsThatCannotBeWrittenAreAFailure(t *testing.T) {
	report := engine.Report{Summary: work.Summary{Misplaced: 3, Blocked: 3, BlockedExample: "pods x/a: forbidden: User cannot patch"}}
	require.Equal(t, v1alpha1.ReasonMoving, assigned(situation{shards: 2, report: report}).Reason, "perhaps it only lasts for a moment")

	report.Failing, report.FailingExample = 2, report.BlockedExample
	c := assigned(situation{shards: 2, report: report})
	require.Equal(t, v1alpha1.ReasonAssignmentFailed, c.Reason)
	require.Contains(t, c.Message, "requests for 2 have failed for seconds, such as pods x/a: forbidden: User cannot patch; grant get, list, watch and patch")
}
