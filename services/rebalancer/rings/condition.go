package rings

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/rebalancer/engine"
	"github.com/clusterring/clusterring/services/rebalancer/scope"
	"github.com/clusterring/clusterring/services/rebalancer/work"
)

// A message about a ring names at most so many resources, shards, and failures, each failure in at most so many bytes.
// An event contains at most so many bytes of it.
const (
	maxNamed   = 3
	maxFailure = 500
	maxNote    = 1024 - len("...")
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
	// invalid is the reason why the spec of a ring that is being deleted is invalid; nil if it is valid.
	invalid error
	// unwatched says which namespaces the ring covers and nobody watches; empty if there is none.
	unwatched string
	// mutating says what may change more in the writes of the rebalancer, see [clusterring.Mutating].
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

// clause is one thing that keeps objects from their places, or a deleted ring from its end.
type clause struct {
	applies bool
	// reason is the reason of the condition Assigned.
	reason string
	// text says what is wrong, and what helps. It is empty if that is said only of a ring that is being deleted.
	text string
	// ending is the text for a ring that is being deleted; empty if the ring does not wait for that. Its length is
	// limited.
	ending string
	// needs is different for each thing that a deleted ring needs from somebody; empty if nobody has to act.
	needs string
}

// clauses returns what applies to a ring. What blocks the others, and what an operator can fix, comes first.
func clauses(s situation) []clause {
	r := s.report
	unreadable := failures(r.Failures) + hint(r.Failures...)
	hung := strings.Join(some(r.Hanging, hanging, nil), "; ")

	all := []clause{{
		applies: len(r.Failures) > 0, reason: v1alpha1.ReasonAssignmentFailed, text: unreadable,
		ending: "its labels cannot be removed: " + unreadable,
		needs:  strings.Join(r.Failures, "\n"),
	}, {
		applies: s.missing != "", reason: v1alpha1.ReasonResourcesMissing, text: s.missing,
		ending: "its labels may be on objects that cannot be read: " + clip(s.missing, maxFailure),
		needs:  s.unknown, // a resource that is not served will soon be known to be gone
	}, {
		applies: s.shards == 0, reason: v1alpha1.ReasonNoShards,
		text: "no shard is available; objects keep the shard they have",
	}, {
		applies: len(r.Hanging) > 0, reason: v1alpha1.ReasonAssignmentFailed, text: counts(r) + ": " + hung, ending: hung,
	}, {
		applies: r.Failing > 0, reason: v1alpha1.ReasonAssignmentFailed,
		text: fmt.Sprintf("%s: requests for %d have failed for seconds, such as %s%s",
			counts(r), r.Failing, r.FailingExample, worst(s)) + hint(r.FailingExample) + s.mutating,
	}, {
		applies: r.Late > 0, reason: v1alpha1.ReasonDrainsLate, text: counts(r) + ": " + late(r),
		ending: fmt.Sprintf("not released in time: %d, such as %s: find out why that shard still works on it, "+
			"or stop the shard", r.Late, r.LateExample),
		needs: "late",
	}, {
		applies: s.unwatched != "", reason: v1alpha1.ReasonNamespacesNotWatched, text: s.unwatched,
	}, {
		applies: r.Blocked > 0, reason: v1alpha1.ReasonMoving,
		text: fmt.Sprintf("%s: %d cannot move yet, such as %s%s", counts(r), r.Blocked, r.BlockedExample, worst(s)),
		ending: fmt.Sprintf("not to be released yet: %d, such as %s%s%s",
			r.Blocked, clip(r.BlockedExample, maxFailure), worst(s), hint(r.BlockedExample)),
		needs: hint(r.BlockedExample),
	}, {
		applies: s.invalid != nil,
		ending:  clip(fmt.Sprint(s.invalid), maxFailure) + " (it selects nothing, so that all labels are removed)",
	}}

	return slices.DeleteFunc(all, func(c clause) bool {
		return !c.applies || s.deleting && c.ending == "" || !s.deleting && c.text == ""
	})
}

// deleting returns what a ring that is being deleted waits for: what is left, and then what somebody has to act on. Its
// length is limited.
func deleting(s situation, waits []clause) string {
	all := []string{"the ring is being deleted: " + left(s.report)}

	if asked := s.report.Asked; len(asked) > 0 {
		all = append(all, "shards were asked to release "+named(asked, " at shard ")+
			", and do so when they have finished their work on them")
	}

	for _, c := range waits {
		all = append(all, c.ending)
	}

	return strings.Join(all, "; ")
}

// needs returns what a deleted ring needs from somebody, in a text that does not change while objects move; empty if it
// needs nothing.
func needs(s situation) (all string) {
	for _, c := range clauses(s) {
		all += c.needs
	}

	return all
}

// left returns how many objects have labels of a ring that is being deleted, as far as is known.
func left(r engine.Report) string {
	switch n := r.Unassigned + r.Misplaced + r.Draining; {
	case n > 0:
		return fmt.Sprintf("objects with its labels, as far as is known: %d (%s)", n, named(r.Resources, " "))
	case r.Converged:
		return "no object that can be read has its labels"
	}

	return "it looks for objects that have its labels"
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

// some returns what is said of the first elements, and of all others together if there are any and others is not nil.
func some[T any](all []T, one func(T) string, others func([]T) string) (texts []string) {
	n := min(len(all), maxNamed)
	for _, element := range all[:n] {
		texts = append(texts, one(element))
	}

	if n < len(all) && others != nil {
		texts = append(texts, others(all[n:]))
	}

	return texts
}

// named returns the largest shares, and how much the others have together.
func named(shares []work.Share, of string) string {
	one := func(s work.Share) string { return fmt.Sprint(s.N) + of + s.Of }

	return strings.Join(some(shares, one, func(others []work.Share) string {
		n := 0
		for _, s := range others {
			n += s.N
		}

		return fmt.Sprintf("and %d more", n)
	}), ", ")
}

func failures(all []string) string {
	one := func(f string) string { return clip(f, maxFailure) }

	return strings.Join(some(all, one, func(others []string) string {
		return fmt.Sprintf("and %d more failures", len(others))
	}), "; ")
}

// hanging returns which writes hang, since when, and why.
func hanging(h work.Hanging) string {
	return fmt.Sprintf("writes of %s have not been answered since %s: %s; %d objects wait",
		h.Resource, h.Since.UTC().Format(time.TimeOnly), clip(h.Reason, maxFailure), h.Objects)
}

// worst names the resources with most objects that have a problem, and since when they have; empty if there are none.
func worst(s situation) string {
	texts := some(s.report.Problems, func(p work.Share) string {
		return fmt.Sprintf("%d of %s, since %s", p.N, p.Of, s.since[p.Of].UTC().Format(time.RFC3339))
	}, func(others []work.Share) string { return fmt.Sprintf("and %d more resources", len(others)) })
	if len(texts) == 0 {
		return ""
	}

	return " (" + strings.Join(texts, "; ") + ")"
}

// began records since when objects of resources have had problems.
func began(since map[string]time.Time, now time.Time, problems []work.Share) map[string]time.Time {
	next := map[string]time.Time{}
	for _, p := range problems {
		next[p.Of] = cmp.Or(since[p.Of], now)
	}

	return next
}

// late returns what shards have not released in time: first those that release no objects of a resource.
func late(r engine.Report) string {
	others := r.Late
	for _, s := range r.Silent {
		others -= s.Objects
	}

	texts := some(r.Silent, func(s work.Silent) string {
		return fmt.Sprintf("shard %s has acknowledged no drain of %s since %s (%d objects): it may run no controller for "+
			"them, or may not patch them; it is asked for one more at a time",
			s.Shard, s.Resource, s.Since.UTC().Format(time.RFC3339), s.Objects)
	}, nil)

	if others > 0 {
		texts = append(texts, fmt.Sprintf("%d were not released in time, such as %s; check whether that shard is working",
			others, r.LateExample))
	}

	return strings.Join(texts, "; ")
}

// unwatched says which namespaces a target covers that no available shard watches, and which shards watch what; empty
// if there is none.
func unwatched(t *target) string {
	namespaced := func(r resources.Resource) bool { return r.Namespaced && !t.Leaving[r.GroupResource()] }
	if !t.View.Restricted() || !slices.ContainsFunc(t.Set.Main(), namespaced) {
		return ""
	}

	names := slices.DeleteFunc(slices.Sorted(maps.Keys(t.covered)), func(name string) bool {
		return !t.covered[name] || t.View.Watched(name)
	})
	if len(names) == 0 {
		return ""
	}

	return fmt.Sprintf("nobody works on objects in the namespaces %s, which the ring covers and no shard watches: %s; "+
		"start the shards with these namespaces, or leave them out in spec.namespaceSelector",
		membership.Few(names), strings.Join(t.View.Restrictions(), "; "))
}

// hint returns what to do about failures that have a usual cause.
func hint(failures ...string) string {
	if !slices.ContainsFunc(failures, refused) {
		return ""
	}

	return "; grant get, list, watch and patch on the ring's resources with a ClusterRole that has the label " +
		contract.LabelAggregateToRebalancer + `: "true"`
}

// refused reports whether a message is about a missing permission.
func refused(message string) bool { return strings.Contains(message, "forbidden: User") }

// clip shortens a text to so many bytes, and "...".
func clip(text string, most int) string {
	if len(text) <= most {
		return text
	}

	return strings.ToValidUTF8(text[:most], "") + "..."
}

// assignment returns the assignment for the status of the ring.
func assignment(ring *v1alpha1.ClusterRing, t *target, r engine.Report) *v1alpha1.AssignmentStatus {
	a := &v1alpha1.AssignmentStatus{
		//nolint:gosec // far below
		Unassigned: int32(r.Unassigned), Misplaced: int32(r.Misplaced), Draining: int32(r.Draining),
		LostShards: lost(t, r), Resources: scope.Remember(ring, t.Set, r.ConvergedFor, t.View.Fingerprint()),
	}

	if r.Converged && len(t.missing()) == 0 {
		a.Fingerprint = t.View.Fingerprint()
	}

	return a
}

// lost returns the shards whose Leases the lease monitor has to keep from them. Users may label objects with names that
// have no Lease. Of very many, the others follow when the objects of the first ones have moved.
func lost(t *target, r engine.Report) []string {
	names := sets.New[string]()
	for _, s := range t.View.Shards() {
		names.Insert(s.Name)
	}

	all := sets.List(names.Intersection(sets.New(r.Lost...)))

	return all[:min(len(all), v1alpha1.MaxLostShards)]
}
