package rebalancer

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/rebalancer/engine"
	"github.com/clusterring/clusterring/services/rebalancer/scope"
)

// situation is what the condition Assigned is decided by.
type situation struct {
	// deleting says that the ring is being deleted.
	deleting bool
	// shards is the number of available shards.
	shards int
	// missing says which resources are not served; empty if none is missing.
	missing string
	// unknown says of which resources it is not known whether they are served; empty if there is none.
	unknown string
	// invalid says what is wrong with the ring's spec; empty if nothing is.
	invalid string
	// report is how far the engine is.
	report engine.Report
}

// assigned returns the condition Assigned. Of several things to say the one comes first that keeps the others from
// happening, and that a person can mend.
func assigned(s situation) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionAssigned, Status: metav1.ConditionFalse}
	r := s.report

	switch {
	case s.deleting:
		c.Reason = v1alpha1.ReasonDeleting
		c.Message = "the ring is being deleted, and waits: " + strings.Join(waits(s), "; ")
	case len(r.Failures) > 0:
		c.Reason = v1alpha1.ReasonAssignmentFailed
		c.Message = strings.Join(r.Failures, "; ") + hint(r.Failures)
	case s.missing != "":
		c.Reason, c.Message = v1alpha1.ReasonResourcesMissing, s.missing
	case s.shards == 0:
		c.Reason, c.Message = v1alpha1.ReasonNoShards, "no shard is available; objects keep the shard they have"
	case r.Late > 0:
		c.Reason = v1alpha1.ReasonDrainsLate
		c.Message = counts(r) + ": " + late(r)
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

// waits says what keeps a deleted ring from going.
func waits(s situation) []string {
	r := s.report

	var all []string

	if s.invalid != "" {
		all = append(all, s.invalid+" (which selects nothing, so that all labels go)")
	}

	if len(r.Failures) > 0 {
		all = append(all, "its labels cannot be removed where they may be: "+strings.Join(r.Failures, "; ")+hint(r.Failures))
	}

	if s.missing != "" {
		all = append(all, "its labels may be on objects that cannot be read: "+s.missing)
	}

	if r.Late > 0 {
		all = append(all, late(r))
	}

	if r.Blocked > 0 {
		all = append(all, fmt.Sprintf("%d cannot be given up yet, such as %s", r.Blocked, r.BlockedExample))
	}

	return append(all, counts(r))
}

// stuck names what a deleted ring waits for by kind, in words that do not change while objects do, and reports whether it will wait
// for ever if nobody acts; empty if it is on its way.
func stuck(s situation) (grave bool, why string) {
	kinds := slices.Clone(s.report.Failures)

	if s.unknown != "" { // what is not served is soon known to be gone
		kinds = append(kinds, s.unknown)
	}

	if s.report.Late > 0 {
		kinds = append(kinds, "late")
	}

	if grave = len(kinds) > 0; !grave && s.report.Draining > 0 {
		kinds = append(kinds, "draining")
	}

	return grave, strings.Join(kinds, "\n")
}

func late(r engine.Report) string {
	return fmt.Sprintf("%d were not given up in time, such as %s; is that shard working?", r.Late, r.LateExample)
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
		LostShards: r.Lost[:min(len(r.Lost), v1alpha1.MaxLostShards)], Resources: t.scope.Remember(t.Set),
	}

	if r.Converged {
		a.Resources = scope.Converged(ring, t.Set)
	}

	if r.Converged && len(t.missing()) == 0 {
		a.Fingerprint = t.View.Fingerprint()
	}

	return a
}
