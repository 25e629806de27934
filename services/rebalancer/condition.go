package rebalancer

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/rebalancer/engine"
)

// situation is what the condition Assigned is decided by.
type situation struct {
	// deleting says that the ring is being deleted.
	deleting bool
	// shards is the number of available shards.
	shards int
	// missing says which resources are not served; empty if none is missing.
	missing string
	// report is how far the engine is.
	report engine.Report
}

// assigned returns the condition Assigned. Of several things to say the one comes first that keeps the others from
// happening, and that a person can mend.
func assigned(s situation) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionAssigned, Status: metav1.ConditionFalse}
	r := s.report

	switch {
	case len(r.Failures) > 0:
		c.Reason = v1alpha1.ReasonAssignmentFailed
		c.Message = strings.Join(r.Failures, "; ") + hint(r.Failures)
	case s.missing != "":
		c.Reason, c.Message = v1alpha1.ReasonResourcesMissing, s.missing
	case s.deleting:
		c.Reason = v1alpha1.ReasonDeleting
		c.Message = "the ring is being deleted: " + counts(r)
	case s.shards == 0:
		c.Reason, c.Message = v1alpha1.ReasonNoShards, "no shard is available; objects keep the shard they have"
	case r.Late > 0:
		c.Reason = v1alpha1.ReasonDrainsLate
		c.Message = fmt.Sprintf("%s: %d were not given up in time, such as %s; is that shard working?", counts(r), r.Late, r.LateExample)
	case r.Blocked > 0:
		c.Reason = v1alpha1.ReasonMoving
		c.Message = fmt.Sprintf("%s: %d cannot move yet, such as %s", counts(r), r.Blocked, r.BlockedExample)
	case !r.Converged:
		c.Reason, c.Message = v1alpha1.ReasonMoving, counts(r)
	default:
		c.Status, c.Reason = metav1.ConditionTrue, v1alpha1.ReasonAllAssigned
		c.Message = "every object is at the shard it belongs to"
	}

	return c
}

func counts(r engine.Report) string {
	if r.Unassigned == 0 && r.Misplaced == 0 && r.Draining == 0 {
		return "looking for objects that are out of place"
	}

	return fmt.Sprintf("%d objects without a shard, %d at another shard, %d asked for", r.Unassigned, r.Misplaced, r.Draining)
}

// hint tells what to do about failures that have a usual reason.
func hint(failures []string) string {
	for _, f := range failures {
		if strings.Contains(f, "forbidden") {
			return "; grant get, list, watch and patch on the ring's resources by a ClusterRole with the label " +
				v1alpha1.LabelAggregateToRebalancer + `: "true"`
		}
	}

	return ""
}

// assignment returns what the status says of the ring's objects.
func assignment(ring *v1alpha1.ClusterRing, t *target, r engine.Report) *v1alpha1.AssignmentStatus {
	a := &v1alpha1.AssignmentStatus{
		Unassigned: int32(r.Unassigned), Misplaced: int32(r.Misplaced), Draining: int32(r.Draining), //nolint:gosec // far below
		Resources: t.resources,
	}

	if r.Converged && len(t.missing()) == 0 {
		a.Fingerprint = t.View.Fingerprint()
		a.Resources = ring.Spec.Resources
	}

	return a
}
