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
	// since is since when objects of a resource have had a problem, by its name; resources without one are absent.
	since map[string]time.Time
	// report is the progress of the engine.
	report engine.Report
}

// assigned returns the condition Assigned. If there are several problems, its reason is that of the first clause.
func assigned(s situation) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionAssigned, Status: metav1.ConditionFalse}
	all := clauses(s)

	switch {
	case s.deleting:
		c.Reason, c.Message = v1alpha1.ReasonDeleting, deleting(s, all)
	case len(all) > 0:
		c.Reason, c.Message = all[0].reason, all[0].text
	case !s.report.Converged:
		c.Reason, c.Message = v1alpha1.ReasonMoving, counts(s.report)
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

// clause is one thing that keeps objects from their places, or a deleted ring from its end.
type clause struct {
	// reason is the reason of the condition Assigned.
	reason string
	// text says what is wrong, and what helps. Its length is limited.
	text string
	// ending is the text for a ring that is being deleted; empty if it is the same.
	ending string
}

// clauses returns what keeps objects from their places. What blocks the others, and what an operator can fix, comes first.
func clauses(s situation) []clause {
	r := s.report

	var all []clause

	add := func(applies bool, c func() clause) {
		if applies {
			all = append(all, c())
		}
	}

	add(len(r.Failures) > 0, func() clause {
		text := failures(r.Failures) + hint(r.Failures)

		return clause{v1alpha1.ReasonAssignmentFailed, text, "its labels cannot be removed: " + text}
	})
	add(s.missing != "", func() clause {
		ending := "its labels may be on objects that cannot be read: " + clip(s.missing)

		return clause{v1alpha1.ReasonResourcesMissing, s.missing, ending}
	})
	add(s.shards == 0 && !s.deleting, func() clause {
		return clause{reason: v1alpha1.ReasonNoShards, text: "no shard is available; objects keep the shard they have"}
	})
	add(len(r.Hanging) > 0, func() clause {
		text := hanging(r.Hanging)

		return clause{v1alpha1.ReasonAssignmentFailed, counts(r) + ": " + text, text}
	})
	add(r.Failing > 0 && !s.deleting, func() clause {
		text := fmt.Sprintf("%s: requests for %d have failed for seconds, such as %s%s",
			counts(r), r.Failing, r.FailingExample, worst(s))

		return clause{reason: v1alpha1.ReasonAssignmentFailed, text: text + hint([]string{r.FailingExample}) + s.mutating}
	})
	add(r.Late > 0, func() clause {
		return clause{
			v1alpha1.ReasonDrainsLate, counts(r) + ": " + late(r),
			fmt.Sprintf("not released in time: %d, such as %s: find out why that shard still works on it, or stop the shard",
				r.Late, r.LateExample),
		}
	})
	add(s.unwatched != "" && !s.deleting, func() clause {
		return clause{reason: v1alpha1.ReasonNamespacesNotWatched, text: s.unwatched}
	})
	add(r.Blocked > 0, func() clause {
		return clause{
			v1alpha1.ReasonMoving,
			fmt.Sprintf("%s: %d cannot move yet, such as %s%s", counts(r), r.Blocked, r.BlockedExample, worst(s)),
			fmt.Sprintf("not to be released yet: %d, such as %s%s", r.Blocked, clip(r.BlockedExample), worst(s)) +
				hint([]string{r.BlockedExample}),
		}
	})
	add(s.invalid != "" && s.deleting, func() clause {
		return clause{ending: clip(s.invalid) + " (it selects nothing, so that all labels are removed)"}
	})

	return all
}

// worst names the resources with most objects that have a problem, and since when they have; empty if there are none.
func worst(s situation) string {
	var all []string

	for _, p := range s.report.Problems[:min(len(s.report.Problems), maxNamed)] {
		all = append(all, fmt.Sprintf("%d of %s, since %s", p.N, p.Of, s.since[p.Of].UTC().Format(time.RFC3339)))
	}

	if len(all) == 0 {
		return ""
	}

	if n := len(s.report.Problems) - maxNamed; n > 0 {
		all = append(all, fmt.Sprintf("and %d more resources", n))
	}

	return " (" + strings.Join(all, "; ") + ")"
}

// began records since when objects of resources have had problems.
func began(since map[string]time.Time, now time.Time, problems []work.Share) map[string]time.Time {
	next := map[string]time.Time{}

	for _, p := range problems {
		next[p.Of] = now
		if before, known := since[p.Of]; known {
			next[p.Of] = before
		}
	}

	return next
}

// late returns what shards have not released in time: first those that release no objects of a resource, and three of them at most.
func late(r engine.Report) string {
	var all []string

	others := r.Late

	for i, s := range r.Silent {
		others -= s.Objects

		if i < maxNamed {
			all = append(all, fmt.Sprintf("shard %s has acknowledged no drain of %s since %s (%d objects): it may run no controller for them, "+
				"or may not patch them; it is asked for one more at a time", s.Shard, s.Resource, s.Since.UTC().Format(time.RFC3339), s.Objects))
		}
	}

	if others > 0 {
		all = append(all, fmt.Sprintf("%d were not released in time, such as %s; check whether that shard is working", others, r.LateExample))
	}

	return strings.Join(all, "; ")
}

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
		LostShards: lost(t, r), Resources: scope.Remember(ring, t.Set, r.ConvergedFor, t.View.Fingerprint()),
	}

	if r.Converged && len(t.missing()) == 0 {
		a.Fingerprint = t.View.Fingerprint()
	}

	return a
}
