package explain

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/lease"
	"github.com/clusterring/clusterring/services/internal/plan"
	"github.com/clusterring/clusterring/services/ringquery/rings"
)

const (
	// DrainTimeout is how long a drain can take before it is an error. It is the default of the rebalancer's
	// --drain-timeout.
	DrainTimeout = time.Minute
	// young is the age below which an object may not have its first shard yet.
	young = 5 * time.Second
)

// place explains where a sharded object is.
func (c *ringCase) place() {
	switch c.act.Verb {
	case plan.AwaitShard:
		c.noShards()
	case plan.Assign:
		c.assign()
	case plan.Drain:
		c.misplaced()
		c.health()
	case plan.Withdraw:
		c.unwantedDrain()
		c.health()
	case plan.AwaitAcknowledgement:
		if c.in.Controlled {
			c.ownerDraining()
		} else {
			c.drain()
		}

		c.health()
	case plan.None, plan.Release:
		if c.act.Verb == plan.None && c.ownerBetween() {
			c.ownerWithoutShard()
		} else {
			c.fine()
		}
	}

	c.ownerNotes()
	c.keyNotes()
	c.pausedNotes()
}

// pausedNotes explains that the object would move if planned moves were not paused.
func (c *ringCase) pausedNotes() {
	if !c.Spec.Paused || c.key == nil || c.in.Desired == "" || c.in.Controlled {
		return
	}

	if to, ok := c.View.OwnerIn(c.key.In, c.key.Key); ok && to != c.in.Desired {
		c.say(Info, "PAUSED", "It would move to shard %s (%s), but spec.paused of ring %s lets objects stay at their shards.",
			to, c.why(*c.key), c.Name)
	}
}

// keyNotes explains that the object has not the key that the ring asks for.
func (c *ringCase) keyNotes() {
	if c.key == nil || !c.key.Missing {
		return
	}

	whose, advice := "It", "Remove spec.resources[].key of the resource from the ring, or use a label."
	if c.in.Controlled {
		whose = "Its owner " + c.ownerName()
	}

	if c.key.Rule.Label != "" {
		advice = "Add the label " + c.key.Rule.Label + ": it then moves to the shard of the objects with the same value."
	}

	c.say(Warning, "KEY_MISSING", "%s lacks %s, which is the key of its resource in ring %s: its name determines the "+
		"shard.", whose, c.key.Rule, c.Name).Advice = advice
}

// assign explains an object that the rebalancer assigns without a drain.
func (c *ringCase) assign() {
	switch {
	case c.act.TakenFrom != "":
		c.unavailable()
	case c.ownerBetween():
		c.ownerWithoutShard()
	case c.in.Shard == "":
		c.unassigned()
	default:
		c.say(Warning, "OWNER_ELSEWHERE", "Its owner %s is at shard %s, but it is still at shard %s: the rebalancer is "+
			"about to assign it to %s. Shard %s has released the owner and all objects that the owner controls.", c.ownerName(),
			c.act.To, c.in.Shard, c.act.To, c.in.Shard).Advice = c.rebalancerAdvice()
	}
}

// unassigned explains an object that has no shard and can get one.
func (c *ringCase) unassigned() {
	age := c.age()

	where := fmt.Sprintf("It belongs to shard %s (%s)", c.act.To, c.why(*c.key))
	if c.in.Controlled && c.in.Owner.Exists {
		where = fmt.Sprintf("It belongs to shard %s, where its owner %s is", c.act.To, c.ownerName())
	}

	if age < young {
		c.say(Info, "UNASSIGNED", "It has no shard of ring %s yet. %s. It is %s old, and the rebalancer is about to assign "+
			"it.", c.Name, where, span(age))

		return
	}

	c.say(Error, "UNASSIGNED", "No shard works on it: it has no shard of ring %s. %s. The rebalancer should assign it "+
		"within seconds, but it is %s old.", c.Name, where, span(age)).Advice = c.rebalancerAdvice()
}

// age returns the age of the object. It compares the clocks of the API server and of this service.
func (c *ringCase) age() time.Duration {
	return max(c.facts.Now.Sub(c.facts.Object.Meta.CreationTimestamp.Time), 0)
}

// misplaced explains a misplaced object that is not draining yet.
func (c *ringCase) misplaced() {
	message := fmt.Sprintf("Shard %s works on it, but it belongs to shard %s (%s).", c.in.Shard, c.in.Desired,
		c.why(*c.key))

	s, st, advice := c.actual(), c.Status.Assignment, "To see the progress: "+statusCommand(c.Name)

	switch {
	case s.GetStopping() || s.GetStandby():
		why := "was told to stop"
		if s.GetStandby() {
			why = fmt.Sprintf("stands by, because spec.activeShards of the ring is %d", *c.Spec.ActiveShards)
		}

		message += fmt.Sprintf(" Shard %s %s, and works until its objects are drained. The rebalancer will drain the object "+
			"from it, and the shard will hand it to shard %s.", c.in.Shard, why, c.in.Desired)
	case st != nil && st.Fingerprint != "" && st.Fingerprint == c.View.Fingerprint():
		message += " The rebalancer has found all objects in place since the shards of the ring last changed. The label " +
			"was changed later, and the next audit will find the object."
		advice = "Nothing is broken: one shard works on it. To move it now, drain it: " +
			c.facts.Object.labelCommand(c.Keys.Drain+"="+contract.DrainValue)
	default:
		message += fmt.Sprintf(" After a change of shards, the rebalancer moves objects at a limited rate. It will drain "+
			"the object from shard %s and then assign it to shard %s.", c.in.Shard, c.in.Desired)
	}

	c.say(Warning, "MISPLACED", "%s", message).Advice = advice

	if !s.GetStopping() && !s.GetStandby() {
		c.labelWriter()
	}
}

// drain explains a draining object.
func (c *ringCase) drain() {
	next := contract.NextShard(c.facts.Object.Meta.GetLabels()[c.Keys.Drain])

	to := "Then it gets no other shard"

	switch {
	case c.in.Desired != "" && next != "" && next != c.in.Desired:
		to = fmt.Sprintf("Then it moves to shard %s, which the drain names, and from there to shard %s", next, c.in.Desired)
	case c.in.Desired != "":
		to = "Then it moves to shard " + c.in.Desired
	}

	since := c.told.GetAssignment().GetDrainTime()
	waited := c.facts.Now.Sub(since.AsTime())

	if since == nil || waited < DrainTimeout {
		when := " " + span(waited) + " ago"
		if since == nil {
			when = ", at an unknown time"
		}

		c.say(Warning, "DRAIN_PENDING", "Shard %s was asked to release it%s. The shard finishes the current reconcile of "+
			"the object, starts no other, and releases it. %s.", c.in.Shard, when, to)

		return
	}

	advice := "An object is never taken from a shard that holds its Lease. Check whether a reconcile hangs there"
	if s := c.actual(); s != nil {
		advice += ": kubectl -n " + s.GetNamespace() + " logs " + c.podOf(s) + ". If so, stop that Pod: its objects move " +
			"when it has released its Lease, or when the Lease has been taken"
	}

	c.say(Error, "DRAIN_LATE", "Shard %s was asked to release it %s ago, and has not done so. Either it still works on "+
		"the object, or its controller does not acknowledge drains of %s. %s.", c.in.Shard, span(waited),
		c.facts.Object.Resource.GroupResource(), to).Advice = advice + "."
}

// unwantedDrain explains a drain that is about to be withdrawn.
func (c *ringCase) unwantedDrain() {
	c.say(Warning, "DRAIN_UNWANTED", "Shard %s was asked to release it, but it belongs there again: the rebalancer "+
		"withdraws the drain. If the shard releases it before that, the shard gets it back.", c.in.Shard).Advice =
		c.rebalancerAdvice()
}

// fine explains an object that is where it belongs.
func (c *ringCase) fine() {
	c.health()

	s := c.actual()
	if s == nil || stateNow(s) != lease.Ready {
		return
	}

	why := c.why(*c.key)

	switch {
	case c.in.Controlled && !c.in.Owner.Exists:
		why = "where it was when its owner disappeared"
	case c.in.Controlled:
		why = "where its owner " + c.ownerName() + " is" + c.through()
	}

	c.say(Info, "ASSIGNED", "It is at shard %s, where it should be in ring %s (%s), and the shard holds its Lease %s, "+
		"renewed %s.", s.GetName(), c.Name, why, id(s), renewed(s)).Advice = fmt.Sprintf("If it is not reconciled, check "+
		"the log of the shard: kubectl -n %s logs %s", s.GetNamespace(), c.podOf(s))
	c.handover()
}

// handover describes what the shard of an object must see before it starts to work on the object.
func (c *ringCase) handover() {
	handover, err := contract.ParseHandover(c.facts.Object.Meta.Annotations[c.Keys.Handover])
	if err != nil || len(handover) == 0 {
		return
	}

	var all []string
	for gr, version := range handover {
		all = append(all, fmt.Sprintf("%s up to version %s", gr, version))
	}

	slices.Sort(all)
	c.say(Info, "HANDOVER", "The objects that follow it came to shard %s before it did. The shard starts to work on it "+
		"when its caches contain them: %s.", c.in.Shard, list(all)).Advice =
		"A shard that is still waiting reports this in its log and in its metric clusterring_shard_waiting_objects."
}

// labelWriter reports who wrote the shard label, if this is known and was not the rebalancer.
func (c *ringCase) labelWriter() {
	writers := rings.Writers(c.Keys.Shard, c.facts.Object.Meta)
	if len(writers) == 0 || writers[len(writers)-1].Manager == Rebalancer {
		return
	}

	last := writers[len(writers)-1]

	c.say(Info, "LABEL_WRITER", "Its shard label was set in a write of %q at %s, not by the rebalancer. The write may "+
		"come from a person, or the assigner may have added the label to it.", last.Manager,
		last.Time.UTC().Format(time.RFC3339))
}

// ownerName names the owner, as in "Website blog".
func (c *ringCase) ownerName() string {
	return c.owner.Resource.Kind.Kind + " " + c.owner.Name
}

// through names the objects between the object and its owner. Empty: the owner controls it directly.
func (c *ringCase) through() string {
	var all []string
	for _, o := range c.Kin.Between {
		all = append(all, o.Resource.Kind.Kind+" "+o.Name)
	}

	if len(all) == 0 {
		return ""
	}

	return ", which it follows through " + list(all)
}

// ownerWithoutShard explains an object that moves before its owner, on which no shard works.
func (c *ringCase) ownerWithoutShard() {
	at := "has no shard"
	if c.in.Owner.Shard != "" {
		at = fmt.Sprintf("has the label of shard %s, which is not available", c.in.Owner.Shard)
	}

	severity, itself := Warning, fmt.Sprintf("Meanwhile, shard %s keeps the object.", c.in.Shard)

	switch {
	case c.in.Shard == "" && c.age() < young:
		severity, itself = Info, "The object is only "+span(c.age())+" old."
	case c.in.Shard == "":
		severity, itself = Error, "No shard works on the object: it has no shard either."
	case c.act.Verb == plan.None:
		itself = fmt.Sprintf("The object is already at shard %s, to which the owner moves.", c.in.Shard)
	}

	c.say(severity, "OWNER_WITHOUT_SHARD", "Its owner %s %s. %s Controlled objects move before their owner: the "+
		"rebalancer moves them to shard %s, and then the owner.", c.ownerName(), at, itself, c.in.Desired).Advice =
		"Explain the owner to see why it does not move."
	c.health()
}

// ownerBetween reports whether the owner of a controlled object has no available shard and will get one.
func (c *ringCase) ownerBetween() bool {
	return c.in.Controlled && c.in.Belongs && c.in.Owner.Exists && c.in.Desired != "" && !c.space().Works(c.in.Owner.Shard)
}

// ownerDraining explains an object at another shard than its owner, which is about to move.
func (c *ringCase) ownerDraining() {
	c.say(Warning, "OWNER_DRAINING", "Its owner %s is draining from shard %s. The object stays at shard %s until the "+
		"owner has moved, and then follows.", c.ownerName(), c.in.Owner.Shard, c.in.Shard).Advice =
		"Explain the owner to see why it does not move."
}

// ownerNotes adds further findings about the owner.
func (c *ringCase) ownerNotes() {
	if c.owner == nil || !c.in.Belongs {
		return
	}

	switch {
	case !c.in.Owner.Exists:
		also := ""
		if c.Owner != nil {
			also = " (another object has its name now)"
		}

		c.say(Warning, "OWNER_GONE", "Its owner %s no longer exists%s, so the garbage collector is about to delete the "+
			"object. Until then, the object is at an available shard, which can remove its finalizers.", c.ownerName(),
			also).Advice = "If the object stays, check its finalizers and the garbage collector of the cluster."
	case c.told.GetNext() == FollowOwner && c.in.Shard == c.in.Owner.Shard && c.in.Owner.Draining:
		c.say(Warning, "OWNER_DRAINING", "Shard %s was asked to release its owner %s. When the owner has moved, the object "+
			"follows.", c.in.Shard, c.ownerName())
	}
}

// conditions adds the problems that the services report about the ring, also while the object itself is fine: they can
// reach it. They do not concern an object that is none of the ring's.
func (c *ringCase) conditions() {
	if !c.in.Belongs && !c.in.Labels() && c.DeletionTimestamp.IsZero() {
		return
	}

	assigned, webhook := c.failing(v1alpha1.ConditionAssigned), c.failing(v1alpha1.ConditionWebhookRegistered)

	// The findings about the shards explain these two reasons.
	if assigned != nil && assigned.Reason != v1alpha1.ReasonNoShards &&
		assigned.Reason != v1alpha1.ReasonNamespacesNotWatched {
		severity, reason := Warning, assigned.Reason

		if c.told.GetNextActor() == Rebalancer &&
			(reason == v1alpha1.ReasonAssignmentFailed || reason == v1alpha1.ReasonResourcesMissing) {
			severity = max(severity, c.worst()) // it may be the reason why this object does not move
		}

		c.say(severity, "RING_NOT_ASSIGNED", "%s", c.quote("The rebalancer reports", assigned))
	}

	if webhook != nil && webhook.Reason != v1alpha1.ReasonDeleting && webhook.Reason != v1alpha1.ReasonEmbedded {
		c.say(Warning, "WEBHOOK_NOT_REGISTERED", "%s", c.quote("The assigner reports", webhook)+" Until this is fixed, new "+
			"objects get their shard from the rebalancer, seconds later.")
	}

	unfenced, shards := c.fence(), c.failing(v1alpha1.ConditionShardsAvailable)
	explained := assigned != nil || webhook != nil || unfenced ||
		shards != nil && shards.Reason != v1alpha1.ReasonLeasesNotTaken

	if ready := c.failing(v1alpha1.ConditionReady); ready != nil && !explained {
		c.say(Warning, "RING_NOT_READY", "%s", c.quote("The lease monitor reports", ready))
	}

	never := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.ConditionAssigned) == nil
	if never && c.told.GetNextActor() == Rebalancer && c.worst() > Info {
		c.say(Error, "REBALANCER_SILENT", "The rebalancer has never reported on ring %s: it does not seem to run, and "+
			"nothing will move.", c.Name).Advice = "Start it, or find out why it does not start: " +
			"kubectl -n " + contract.SystemNamespace + " get pods -l app.kubernetes.io/name=rebalancer"
	}
}

// failing returns the condition of the ring if it is not True; nil if it is, or is missing.
func (c *ringCase) failing(kind string) *metav1.Condition {
	if meta.IsStatusConditionTrue(c.Status.Conditions, kind) {
		return nil
	}

	return meta.FindStatusCondition(c.Status.Conditions, kind)
}

// fence adds whose writes the API server refuses. It reports whether the fence is in trouble.
func (c *ringCase) fence() bool {
	fence := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.ConditionFenced)

	switch {
	case !c.in.Belongs || fence == nil || fence.Reason == v1alpha1.ReasonFenceOff:
	case fence.Status == metav1.ConditionTrue:
		c.say(Info, "FENCED", "The ring has a fence: the API server refuses writes to this object by shards that are not on "+
			"its label.")
	case fence.Reason == v1alpha1.ReasonFenceAudited:
		c.say(Info, "NOT_FENCED", "The fence of the ring is in mode Audit: the API server allows writes to this object by "+
			"shards that are not on its label, and reports them.")
	default:
		c.say(Warning, "NOT_FENCED", "%s", c.quote("The assigner reports", fence)+" Until this is fixed, shards can write "+
			"this object if they are not on its label.")

		return true
	}

	return false
}

// quote describes a condition.
func (c *ringCase) quote(who string, condition *metav1.Condition) string {
	message := condition.Message
	if message == "" {
		message = condition.Reason
	}

	return sentence(fmt.Sprintf("%s of ring %s, since %s: %s is %s (%s): %s", who, c.Name,
		condition.LastTransitionTime.UTC().Format(time.RFC3339), condition.Type, condition.Status, condition.Reason, message))
}
