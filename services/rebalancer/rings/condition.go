package rings

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/rebalancer/engine"
	"github.com/clusterring/clusterring/services/rebalancer/scope"
	"github.com/clusterring/clusterring/services/rebalancer/work"
)

// situation is the input of the condition Assigned.
type situation struct {
	// deleting reports whether the ring is being deleted.
	deleting bool
	// shards is the number of available shards.
	shards int
	// missing lists the resources that are not served; empty if none is missing.
	missing string
	// unknown lists the resources of which it is unknown whether they are served; empty if there is none.
	unknown string
	// invalid is the reason why the ring's spec is invalid; empty if it is valid.
	invalid string
	// unwatched says which namespaces the ring covers and nobody watches; empty if there is none.
	unwatched string
	// mutating says what may change more in the writes of the rebalancer, as [Reconciler.mutating] does.
	mutating string
	// report is the progress of the engine.
	report engine.Report
}

// assigned returns the condition Assigned. If there are several problems, it reports the one that blocks the others, and that
// an operator can fix.
func assigned(s situation) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionAssigned, Status: metav1.ConditionFalse}
	r := s.report

	switch {
	case s.deleting:
		c.Reason, c.Message = v1alpha1.ReasonDeleting, deleting(s)
	case len(r.Failures) > 0:
		c.Reason = v1alpha1.ReasonAssignmentFailed
		c.Message = failures(r.Failures) + hint(r.Failures)
	case s.missing != "":
		c.Reason, c.Message = v1alpha1.ReasonResourcesMissing, s.missing
	case s.shards == 0:
		c.Reason, c.Message = v1alpha1.ReasonNoShards, "no shard is available; objects keep the shard they have"
	case len(r.Hanging) > 0:
		c.Reason = v1alpha1.ReasonAssignmentFailed
		c.Message = counts(r) + ": " + hanging(r.Hanging)
	case r.Failing > 0:
		c.Reason = v1alpha1.ReasonAssignmentFailed
		c.Message = fmt.Sprintf("%s: requests for %d have failed for seconds, such as %s", counts(r), r.Failing, r.FailingExample) +
			hint([]string{r.FailingExample}) + s.mutating
	case r.Late > 0:
		c.Reason = v1alpha1.ReasonDrainsLate
		c.Message = counts(r) + ": " + late(r)
	case s.unwatched != "":
		c.Reason, c.Message = v1alpha1.ReasonNamespacesNotWatched, s.unwatched
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

// hanging returns which writes hang, since when, and why.
func hanging(all []work.Hanging) string {
	var text []string
	for _, h := range all[:min(len(all), maxNamed)] {
		text = append(text, fmt.Sprintf("writes of %s have not been answered since %s: %s; %d objects wait",
			h.Resource, h.Since.UTC().Format(time.TimeOnly), clip(h.Reason), h.Objects))
	}

	return strings.Join(text, "; ")
}

// late returns what shards have not released in time: first those that release no objects of a resource, and three of them at most.
func late(r engine.Report) string {
	var all []string

	others := r.Late

	for i, s := range r.Silent {
		others -= s.Objects

		if i < mostSilent {
			all = append(all, fmt.Sprintf("shard %s has acknowledged no drain of %s since %s (%d objects): it may run no controller for them, "+
				"or may not patch them; it is asked for one more at a time", s.Shard, s.Resource, s.Since.UTC().Format(time.RFC3339), s.Objects))
		}
	}

	if others > 0 {
		all = append(all, fmt.Sprintf("%d were not released in time, such as %s; check whether that shard is working", others, r.LateExample))
	}

	return strings.Join(all, "; ")
}

// mostSilent is the number of shards that a condition names because they acknowledge no drains of a resource.
const mostSilent = 3

func counts(r engine.Report) string {
	if r.Unassigned == 0 && r.Misplaced == 0 && r.Draining == 0 {
		return "looking for objects that are out of place"
	}

	text := fmt.Sprintf("%d objects unassigned, %d misplaced, %d draining", r.Unassigned, r.Misplaced, r.Draining)
	if r.More {
		text = "at least " + text
	}

	return text
}

// hint returns what to do about failures that have a usual cause.
func hint(failures []string) string {
	if !slices.ContainsFunc(failures, refused) {
		return ""
	}

	return "; grant get, list, watch and patch on the ring's resources with a ClusterRole that has the label " +
		contract.LabelAggregateToRebalancer + `: "true"`
}

// refused reports whether a message is about a missing permission.
func refused(message string) bool {
	return strings.Contains(message, "forbidden: User")
}

// lost returns the shards whose Leases the lease monitor has to keep from them. Users may label objects with names that have no Lease. Of very many,
// the others follow when the objects of the first ones have moved.
func lost(t *target, r engine.Report) []string {
	names := sets.New[string]()
	for _, s := range t.View.Shards() {
		names.Insert(s.Name)
	}

	all := slices.DeleteFunc(slices.Clone(r.Lost), func(name string) bool { return !names.Has(name) })

	return all[:min(len(all), v1alpha1.MaxLostShards)]
}

// assignment returns the assignment for the status of the ring.
func assignment(ring *v1alpha1.ClusterRing, t *target, r engine.Report) *v1alpha1.AssignmentStatus {
	a := &v1alpha1.AssignmentStatus{
		Unassigned: int32(r.Unassigned), Misplaced: int32(r.Misplaced), Draining: int32(r.Draining), //nolint:gosec // far below
		LostShards: lost(t, r), Resources: t.scope.Remember(t.Set),
	}

	if r.Converged {
		a.Resources = scope.Converged(ring, t.Set)
	}

	if r.Converged && len(t.missing()) == 0 {
		a.Fingerprint = t.View.Fingerprint()
	}

	return a
}
