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
	"github.com/clusterring/clusterring/services/rebalancer/move"
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
	// Report is the progress of the engine.
	engine.Report
	// deleting reports whether the ring is being deleted.
	deleting bool
	// shards is the number of available shards.
	shards int
	// missing lists the resources that are not served; empty if none is missing.
	missing string
	// invalid is the reason why the spec of a ring that is being deleted is invalid; nil if it is valid.
	invalid error
	// unwatched says which namespaces the ring covers and nobody watches; empty if there is none.
	unwatched string
	// mutating says what may change more in the writes of the rebalancer, see [clusterring.Mutating].
	mutating string
	// since is since when objects of a resource have had a problem, by its name; resources without one are absent.
	since map[string]time.Time
}

// clause is one thing that keeps objects from their places, or a deleted ring from its end.
type clause struct {
	applies bool
	// reason is the reason of the condition Assigned.
	reason string
	// text says what is wrong, and what helps. Its length is limited.
	text string
	// acute reports whether objects stay where they are until somebody acts.
	acute bool
}

// clauses returns what applies to a ring. What blocks the others, and what an operator can fix, comes first.
func clauses(s situation) []clause {
	clipped := func(f string) string { return clip(f, maxFailure) }
	hung := few(s.Hanging, "; ", func(h work.Hanging) string {
		return fmt.Sprintf("writes of %s have not been answered since %s: %s; %d objects wait",
			h.Resource, h.Since.UTC().Format(time.TimeOnly), clipped(h.Reason), h.Objects)
	})
	problems := few(s.Problems, "; ", func(p work.Share) string {
		return fmt.Sprintf("%d of %s, since %s", p.N, p.Of, s.since[p.Of].UTC().Format(time.RFC3339))
	})

	if problems != "" {
		problems = " (" + problems + ")"
	}

	all := []clause{{
		applies: len(s.Failures) > 0, reason: v1alpha1.ReasonAssignmentFailed, acute: true,
		text: few(s.Failures, "; ", clipped) + hint(s.Failures...),
	}, {
		applies: s.missing != "", reason: v1alpha1.ReasonResourcesMissing, acute: true,
		text: clip(s.missing, 4*maxFailure), //nolint:mnd // it names several resources
	}, {
		applies: s.shards == 0 && !s.deleting, reason: v1alpha1.ReasonNoShards,
		text: "no shard is available; objects keep the shard they have",
	}, {
		applies: len(s.Hanging) > 0, reason: v1alpha1.ReasonAssignmentFailed, text: hung, acute: true,
	}, {
		applies: s.Failing > 0, reason: v1alpha1.ReasonAssignmentFailed, acute: true,
		text: fmt.Sprintf("requests for %d have failed for seconds, such as %s%s%s%s",
			s.Failing, clipped(s.FailingExample), problems, hint(s.FailingExample), s.mutating),
	}, {
		applies: s.Late > 0, reason: v1alpha1.ReasonDrainsLate, text: late(s.Report), acute: true,
	}, {
		applies: s.unwatched != "" && !s.deleting, reason: v1alpha1.ReasonNamespacesNotWatched, text: s.unwatched,
	}, {
		applies: s.Blocked > s.Failing, reason: v1alpha1.ReasonMoving,
		text: fmt.Sprintf("%d cannot move yet, such as %s%s", s.Blocked, clipped(s.BlockedExample), problems),
	}, {
		applies: s.invalid != nil,
		text:    clipped(fmt.Sprint(s.invalid)) + " (it selects nothing, so that all labels are removed)",
	}}

	return slices.DeleteFunc(all, func(c clause) bool { return !c.applies })
}

// assigned returns the condition Assigned. If there are several problems, its reason is that of the first clause.
// problem is what an event should report; it does not change while objects move, and is empty if there is nothing.
func assigned(s situation) (c metav1.Condition, problem string) {
	c = metav1.Condition{Type: v1alpha1.ConditionAssigned, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonMoving}
	all := clauses(s)

	switch {
	case s.deleting:
		c.Reason = v1alpha1.ReasonDeleting
	case len(all) > 0:
		all = all[:1]
		c.Reason = all[0].reason
	case s.Converged:
		c.Status, c.Reason = metav1.ConditionTrue, v1alpha1.ReasonAllAssigned
		c.Message = "every object is at the shard it belongs to"

		return c, ""
	}

	texts := counts(s.Report)

	for _, clause := range all {
		texts = append(texts, clause.text)
		if clause.acute && (s.deleting || clause.reason == v1alpha1.ReasonAssignmentFailed) {
			problem += clause.reason + " "
		}
	}

	if c.Message = strings.Join(texts, "; "); c.Message == "" {
		c.Message = "looking for objects that are out of place"
	}

	if s.deleting {
		c.Message = "the ring is being deleted: " + c.Message
	}

	return c, problem
}

// counts returns how many objects are out of place, as far as is known, and what shards were asked for; nothing if no
// object is.
func counts(r engine.Report) (texts []string) {
	if len(r.Resources) == 0 {
		return nil
	}

	share := func(of string) func(work.Share) string {
		return func(s work.Share) string { return fmt.Sprint(s.N) + of + s.Of }
	}
	texts = []string{fmt.Sprintf("%d objects unassigned, %d misplaced, %d draining (%s)",
		r.Unassigned, r.Misplaced, r.Draining, few(r.Resources, ", ", share(" ")))}

	if r.More {
		texts[0] = "at least " + texts[0]
	}

	if len(r.Asked) > 0 {
		texts = append(texts, "shards were asked to release "+few(r.Asked, ", ", share(" at shard "))+
			", and do so when they have finished their work on them")
	}

	return texts
}

// late returns what shards have not released in time: first those that release no objects of a resource.
func late(r engine.Report) string {
	text, others := few(r.Silent, "; ", func(s work.Silent) string {
		return fmt.Sprintf("shard %s has acknowledged no drain of %s since %s (%d objects): it may run no controller for "+
			"them, or may not patch them; it is asked for one more at a time",
			s.Shard, s.Resource, s.Since.UTC().Format(time.RFC3339), s.Objects)
	}), r.Late

	for _, s := range r.Silent {
		others -= s.Objects
	}

	if others > 0 {
		text += fmt.Sprintf("; %d were not released in time, such as %s: find out why that shard still works on it, "+
			"or stop the shard", others, r.LateExample)
	}

	return strings.TrimPrefix(text, "; ")
}

// few says something of the first elements, and how many others there are.
func few[T any](all []T, separator string, one func(T) string) string {
	var texts []string
	for _, element := range all[:min(len(all), maxNamed)] {
		texts = append(texts, one(element))
	}

	if more := len(all) - maxNamed; more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}

	return strings.Join(texts, separator)
}

// hint returns what to do about failures that have a usual cause: a missing permission.
func hint(failures ...string) string {
	if !slices.ContainsFunc(failures, func(f string) bool { return strings.Contains(f, "forbidden: User") }) {
		return ""
	}

	return "; grant get, list, watch and patch on the ring's resources with a ClusterRole that has the label " +
		contract.LabelAggregateToRebalancer + `: "true"`
}

// clip shortens a text to so many bytes, and "...".
func clip(text string, most int) string {
	if len(text) <= most {
		return text
	}

	return strings.ToValidUTF8(text[:most], "") + "..."
}

// began records since when objects of resources have had problems.
func began(since map[string]time.Time, now time.Time, problems []work.Share) map[string]time.Time {
	next := map[string]time.Time{}
	for _, p := range problems {
		next[p.Of] = cmp.Or(since[p.Of], now)
	}

	return next
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

// keysFound returns the condition KeysFound; nil if every object has the key of its name.
func keysFound(t *target, r engine.Report) *metav1.Condition {
	var clusterScoped, lacking []string

	keyed := false

	for _, resource := range t.Set.Keyed() {
		gr := resource.GroupResource()
		if t.Leaving[gr] {
			continue
		}

		if keyed = true; resource.Key.Namespace && !resource.Namespaced && !resource.IsNamespaces() {
			clusterScoped = append(clusterScoped, gr.String())
		}

		for _, of := range r.Keyless {
			if of.Resource == gr && resource.Key.Label != "" {
				lacking = append(lacking,
					fmt.Sprintf("%d objects of %s lack %s, such as %s", of.Objects, gr, resource.Key, of.Example))
			}
		}
	}

	c := &metav1.Condition{Type: v1alpha1.ConditionKeysFound, Status: metav1.ConditionFalse}

	switch {
	case !keyed:
		return nil
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

// assignment returns the assignment for the status of the ring.
func assignment(t *target, r engine.Report) *v1alpha1.AssignmentStatus {
	a := &v1alpha1.AssignmentStatus{
		//nolint:gosec // far below
		Unassigned: int32(r.Unassigned), Misplaced: int32(r.Misplaced), Draining: int32(r.Draining),
		LostShards: lost(t, r),
		Resources:  move.Remember(t.ring, t.Set, r.ConvergedFor, t.View.Fingerprint()),
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
