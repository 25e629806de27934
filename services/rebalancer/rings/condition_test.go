package rings

import (
	"fmt"
	"testing"
	"time"

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
	reached := &target{Target: &engine.Target{
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

// A shard that releases no objects of a resource is named, with the resource, before a single object that is late.
func TestSilentShardsAreNamed(t *testing.T) {
	report := engine.Report{Summary: work.Summary{
		Draining: 13, Late: 13, LateExample: "pods x/a at shard b",
		Silent: []work.Silent{{
			Shard: "b", Resource: schema.GroupResource{Resource: "configmaps"}, Objects: 12, Since: time.Date(2030, 1, 1, 15, 4, 5, 0, time.UTC),
		}},
	}}
	c := assigned(situation{shards: 2, report: report})
	require.Equal(t, v1alpha1.ReasonDrainsLate, c.Reason)
	require.Equal(t, "0 objects unassigned, 0 misplaced, 13 draining: shard b has acknowledged no drain of configmaps since "+
		"2030-01-01T15:04:05Z (12 objects): it may run no controller for them, or may not patch them; it is asked for one more at a time; "+
		"1 were not released in time, such as pods x/a at shard b; check whether that shard is working", c.Message)
}

// Writes that hang are a failure, which names at most three resources, and comes before what fails because of it.
func TestWritesThatHangAreAFailure(t *testing.T) {
	report := engine.Report{Summary: work.Summary{Unassigned: 9, Failing: 1}}

	for i := range 4 {
		report.Hanging = append(report.Hanging, work.Hanging{
			Resource: schema.GroupResource{Resource: fmt.Sprintf("things%d", i)}, Since: time.Unix(0, 0), Reason: "no answer", Objects: i + 1,
		})
	}

	c := assigned(situation{shards: 1, report: report})
	require.Equal(t, v1alpha1.ReasonAssignmentFailed, c.Reason)
	require.Contains(t, c.Message, "9 objects unassigned")
	require.Contains(t, c.Message, "writes of things0 have not been answered since 00:00:00: no answer; 1 objects wait; ")
	require.NotContains(t, c.Message, "things3")

	c = assigned(situation{deleting: true, report: report})
	require.Contains(t, c.Message, "writes of things0 have not been answered")
}
