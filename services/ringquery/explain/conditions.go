package explain

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

// conditions adds the problems that the services report about the ring, also while the object itself is fine: they can reach it.
// They do not concern an object that is none of the ring's.
func (c *ringCase) conditions() {
	if !c.in.Belongs && !c.in.Labels() && c.DeletionTimestamp.IsZero() {
		return
	}

	conditions := c.Status.Conditions
	webhook := meta.FindStatusCondition(conditions, v1alpha1.ConditionWebhookRegistered)
	assigned := meta.FindStatusCondition(conditions, v1alpha1.ConditionAssigned)
	told := false

	if isFalse(assigned) && assigned.Reason != v1alpha1.ReasonNoShards && assigned.Reason != v1alpha1.ReasonNamespacesNotWatched {
		told = true
		severity := Warning

		if c.told.GetNextActor() == Rebalancer && (assigned.Reason == v1alpha1.ReasonAssignmentFailed || assigned.Reason == v1alpha1.ReasonResourcesMissing) {
			severity = max(severity, c.worst()) // it may be the reason why this object does not move
		}

		c.add(severity, ReasonNotAssigned, c.quote("The rebalancer reports", assigned), "")
	}

	if isFalse(webhook) && webhook.Reason != v1alpha1.ReasonDeleting && webhook.Reason != v1alpha1.ReasonEmbedded {
		told = true
		c.add(Warning, ReasonWebhookNotRegistered, c.quote("The assigner reports", webhook)+
			" Until this is fixed, new objects get their shard from the rebalancer, seconds later.", "")
	}

	told = c.fence() || told

	ready := meta.FindStatusCondition(conditions, v1alpha1.ConditionReady)
	shards := meta.FindStatusCondition(conditions, v1alpha1.ConditionShardsAvailable)

	stuck := isFalse(shards) && shards.Reason == v1alpha1.ReasonLeasesNotTaken
	if isFalse(ready) && !told && (stuck || !isFalse(shards)) && !isFalse(assigned) && !isFalse(webhook) {
		c.add(Warning, ReasonNotReady, c.quote("The lease monitor reports", ready), "")
	}

	if c.told.GetNextActor() == Rebalancer && assigned == nil && c.worst() > Info {
		c.add(Error, ReasonRebalancerSilent, fmt.Sprintf("The rebalancer has never reported on ring %s: it does not seem to run, and nothing will move.", c.Name),
			"Start it, or find out why it does not start: kubectl -n "+contract.SystemNamespace+" get pods -l app.kubernetes.io/name=rebalancer")
	}
}

// fence adds whose writes the API server refuses. It reports whether the fence is in trouble.
func (c *ringCase) fence() bool {
	fence := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.ConditionFenced)

	switch {
	case !c.in.Belongs || fence == nil || fence.Reason == v1alpha1.ReasonFenceOff:
	case !isFalse(fence):
		c.add(Info, ReasonFenced, "The ring has a fence: the API server refuses writes to this object by shards that are not on its label.", "")
	case fence.Reason == v1alpha1.ReasonFenceAudited:
		c.add(Info, ReasonNotFenced, "The fence of the ring is in mode Audit: the API server allows writes to this object by shards that are not on its label, "+
			"and reports them.", "")
	default:
		c.add(Warning, ReasonNotFenced, c.quote("The assigner reports", fence)+" Until this is fixed, shards can write this object if they are not on its label.", "")
		return true
	}

	return false
}

func isFalse(c *metav1.Condition) bool { return c != nil && c.Status != metav1.ConditionTrue }

// quote describes a condition.
func (c *ringCase) quote(who string, condition *metav1.Condition) string {
	message := condition.Message
	if message == "" {
		message = condition.Reason
	}

	return sentence(fmt.Sprintf("%s of ring %s, since %s: %s is %s (%s): %s", who, c.Name, condition.LastTransitionTime.UTC().Format(time.RFC3339),
		condition.Type, condition.Status, condition.Reason, message))
}
