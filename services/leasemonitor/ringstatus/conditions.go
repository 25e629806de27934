// Package ringstatus reports in a ring's status which shards it has, and whether the ring as a whole does its job.
//
// It reads the ClusterRing and the Leases that carry its name. It writes the lease monitor's part of the status:
// observedGeneration, shards, availableShards, holders, and the conditions ShardsAvailable and Ready. Ready summarizes
// the conditions of all services.
package ringstatus

import (
	"fmt"
	"slices"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/clusterring"
	"github.com/clusterring/clusterring/services/internal/membership"
)

// maxProblems is the number of problems that a message names, so that it stays readable.
const maxProblems = 3

// Of returns the lease monitor's part of the ring's status, for a view of its Leases. The conditions of other services
// come from the ring. notTaken contains a message about each Lease that cannot be taken over. holder is the ring that
// uses the label of this one; empty if there is none. Of changes no argument.
func Of(ring *v1alpha1.ClusterRing, leases []*coordinationv1.Lease, notTaken []string,
	holder string) clusterring.StatusPart {
	view := membership.RulesOf(ring).View(ring.Name, leases, nil)
	shards, available := int32(len(view.Shards())), int32(len(view.AvailableShards()))
	shardsAvailable := shardsAvailable(view, notTaken)
	ready := ready(ring, shardsAvailable)

	if holder != "" {
		ready = clusterring.LabelInUseCondition(v1alpha1.ConditionReady, ring, holder)
	}

	shardsAvailable.Message += "; " + counted(view)
	holders := clusterring.ShardHolders(view)

	return clusterring.StatusPart{
		ObservedGeneration: &ring.Generation,
		Shards:             &shards,
		AvailableShards:    &available,
		Holders:            holders[:min(len(holders), maxHolders)],
		Conditions:         []metav1.Condition{shardsAvailable, ready},
	}
}

// maxHolders is how many holders the status lists. Only people read them.
const maxHolders = 256

// shardsAvailable reports whether there is a shard to assign objects to, which Leases are held in vain, and which of
// them are held by shards that are dead.
func shardsAvailable(view *membership.View, notTaken []string) metav1.Condition {
	c := metav1.Condition{
		Type:    v1alpha1.ConditionShardsAvailable,
		Status:  metav1.ConditionTrue,
		Reason:  v1alpha1.ReasonShardsAvailable,
		Message: count(view),
	}

	problems := view.Problems()
	if len(problems) > 0 {
		c.Reason = v1alpha1.ReasonShardsIgnored
	}

	if len(notTaken) > 0 {
		c.Status, c.Reason = metav1.ConditionFalse, v1alpha1.ReasonLeasesNotTaken
	}

	if problems = slices.Concat(notTaken, problems, view.Restrictions()); len(problems) > 0 {
		c.Message += "; " + join(problems)
	}

	if len(view.AvailableShards()) == 0 {
		c.Status, c.Reason = metav1.ConditionFalse, v1alpha1.ReasonNoShards
	}

	return c
}

// count says how many shards there are of which kind.
func count(view *membership.View) string {
	shards, available := len(view.Shards()), len(view.AvailableShards())

	switch n := view.Ignored(); {
	case shards == 0 && n > 0:
		return fmt.Sprintf("no shard has joined: spec.shardNamespaces does not list the namespaces of the %d Leases with "+
			"the label %s=%s",
			n, contract.LabelClusterRing, view.RingName())
	case shards == 0:
		return fmt.Sprintf("no shard has joined: there is no Lease with the label %s=%s", contract.LabelClusterRing,
			view.RingName())
	}

	message := fmt.Sprintf("%d of %d shards available", available, shards)

	standby := len(view.StandbyShards())
	if standby > 0 {
		message += fmt.Sprintf(", %d standing by", standby)
	}

	stopping := len(view.WorkingShards()) - available - standby
	if stopping > 0 {
		message += fmt.Sprintf(", %d stopping", stopping)
	}

	if gone := shards - available - standby - stopping - len(view.Problems()); gone > 0 {
		message += fmt.Sprintf(", %d without their Lease", gone)
	}

	return message
}

// counted reports which Leases count, and how many do not.
func counted(view *membership.View) string {
	from := view.Namespaces()
	if len(from) == 0 {
		return "Leases in all namespaces count, because spec.shardNamespaces is not set"
	}

	message := "Leases count in the namespaces " + strings.Join(from, ", ")
	if len(from) == 1 {
		message = "Leases count in namespace " + from[0]
	}

	if n := view.Ignored(); n > 0 {
		message += fmt.Sprintf(", and %d in other namespaces are ignored", n)
	}

	return message
}

// ready sums up: the ring does its job unless some condition reports that it does not. Objects on the move are no
// fault, and neither is a service that has not spoken yet.
func ready(ring *v1alpha1.ClusterRing, shardsAvailable metav1.Condition) metav1.Condition {
	var faults []string

	for _, c := range []*metav1.Condition{
		&shardsAvailable,
		meta.FindStatusCondition(ring.Status.Conditions, v1alpha1.ConditionWebhookRegistered),
		meta.FindStatusCondition(ring.Status.Conditions, v1alpha1.ConditionAssigned),
		meta.FindStatusCondition(ring.Status.Conditions, v1alpha1.ConditionFenced),
	} {
		if c != nil && c.Status == metav1.ConditionFalse && !harmless(c) {
			faults = append(faults, fmt.Sprintf("%s is False (%s): %s", c.Type, c.Reason, c.Message))
		}
	}

	if len(faults) > 0 {
		return metav1.Condition{
			Type:    v1alpha1.ConditionReady,
			Status:  metav1.ConditionFalse,
			Reason:  v1alpha1.ReasonReconciliationFailed,
			Message: strings.Join(faults, "; "),
		}
	}

	return metav1.Condition{
		Type:    v1alpha1.ConditionReady,
		Status:  metav1.ConditionTrue,
		Reason:  v1alpha1.ReasonReconciliationSucceeded,
		Message: shardsAvailable.Message,
	}
}

// harmless reports whether a condition that is False means only that work is under way, or what the ring's spec asks
// for.
func harmless(c *metav1.Condition) bool {
	return c.Type == v1alpha1.ConditionAssigned && c.Reason == v1alpha1.ReasonMoving ||
		c.Type == v1alpha1.ConditionWebhookRegistered && c.Reason == v1alpha1.ReasonEmbedded ||
		c.Type == v1alpha1.ConditionFenced && c.Reason != v1alpha1.ReasonFenceFailed
}

func join(problems []string) string {
	if more := len(problems) - maxProblems; more > 0 {
		return strings.Join(problems[:maxProblems], "; ") + fmt.Sprintf("; and %d more", more)
	}

	return strings.Join(problems, "; ")
}
