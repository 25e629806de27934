package explain

import (
	"fmt"
	"slices"
	"time"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/lease"
	"github.com/clusterring/clusterring/services/internal/plan"
	"github.com/clusterring/clusterring/services/ringquery/assignment"
)

const (
	// DrainTimeout is how long a shard may take to give an object up until that is an error; the default of the rebalancer's
	// --drain-timeout.
	DrainTimeout = time.Minute
	// young is the age below which an object may still be on its way to its first shard.
	young = 5 * time.Second
)

// place explains where an object is that the ring shards.
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
}

// assign explains an object that the rebalancer gives to a shard without asking another one.
func (c *ringCase) assign() {
	switch {
	case c.act.TakenFrom != "":
		c.unavailable()
	case c.ownerBetween():
		c.ownerWithoutShard()
	case c.in.Shard == "":
		c.unassigned()
	default:
		c.add(Warning, ReasonOwnerElsewhere, fmt.Sprintf("Its owner %s is at shard %s, and it is still at shard %s: the rebalancer gives it to %s now. "+
			"Shard %s has given the owner up, and with it all that the owner controls.",
			c.ownerName(), c.act.To, c.in.Shard, c.act.To, c.in.Shard), c.rebalancerAdvice())
	}
}

// unassigned explains an object without a shard that can get one.
func (c *ringCase) unassigned() {
	age := c.age()

	where := fmt.Sprintf("It belongs to shard %s (%s)", c.act.To, c.why(*c.key))
	if c.in.Controlled && !c.gone {
		where = fmt.Sprintf("It belongs to shard %s, where its owner %s is", c.act.To, c.ownerName())
	}

	if age < young {
		c.add(Info, ReasonUnassigned, fmt.Sprintf("It has no shard of ring %s yet. %s; it is %s old, and the rebalancer is about to assign it.",
			c.name, where, span(age)), "")

		return
	}

	c.add(Error, ReasonUnassigned, fmt.Sprintf("Nobody works on it: it has no shard of ring %s. %s, and the rebalancer should assign it within seconds; "+
		"it is %s old.", c.name, where, span(age)), c.rebalancerAdvice())
}

// age is how old the object is, by the clocks of the API server and of this one.
func (c *ringCase) age() time.Duration {
	return max(c.facts.Now.Sub(c.facts.Object.Meta.CreationTimestamp.Time), 0)
}

// misplaced explains an object that its shard has not yet been asked to give up.
func (c *ringCase) misplaced() {
	message := fmt.Sprintf("Shard %s works on it, but it belongs to shard %s (%s).", c.in.Shard, c.in.Desired, c.why(*c.key))

	if c.settled() {
		drain := v1alpha1.DrainLabel(c.name) + "=" + v1alpha1.DrainValue
		c.add(Warning, ReasonMisplaced, message+" The rebalancer has found every object in place since the ring's shards last changed, and so does not look "+
			"for others until they change again: the label has been changed after that, or was put there by an assigner that had not heard of the change.",
			"Nothing is broken: one shard works on it. To have it moved now, ask its shard to give it up: "+c.facts.Object.labelCommand(drain))
	} else {
		c.add(Warning, ReasonMisplaced, message+fmt.Sprintf(" The rebalancer goes over the objects after a change of shards, so many at a time, and will ask %s "+
			"to give it up; then it goes to %s.", c.in.Shard, c.in.Desired), "See how far it is: "+statusCommand(c.name))
	}

	c.labelWriter()
}

// settled reports whether the rebalancer has found every object in its place for the shards that are available now.
func (c *ringCase) settled() bool {
	st := c.Status.Assignment

	return st != nil && st.Fingerprint != "" && st.Fingerprint == c.View.Fingerprint()
}

// drain explains an object that its shard has been asked to give up.
func (c *ringCase) drain() {
	next := v1alpha1.NextShard(c.facts.Object.Meta.GetLabels()[v1alpha1.DrainLabel(c.name)])

	to := "then it gets no other shard"

	switch {
	case c.in.Desired != "" && next != "" && next != c.in.Desired:
		to = fmt.Sprintf("then it goes to shard %s, which the drain names, and from there to shard %s", next, c.in.Desired)
	case c.in.Desired != "":
		to = "then it goes to shard " + c.in.Desired
	}

	since, ok := assignment.DrainTime(c.name, c.facts.Object.Meta)
	if !ok {
		c.add(Warning, ReasonDrainPending, fmt.Sprintf("Shard %s was asked to give it up; %s. Since when is not known. "+
			"That shard finishes what it does with the object, starts nothing more, and gives it up.", c.in.Shard, to), "")

		return
	}

	waited := c.facts.Now.Sub(since)
	if waited < DrainTimeout {
		c.add(Warning, ReasonDrainPending, fmt.Sprintf("Shard %s was asked %s ago to give it up; %s. "+
			"That shard finishes what it does with the object, starts nothing more, and gives it up.", c.in.Shard, span(waited), to), "")

		return
	}

	advice := "It is never taken from a shard that holds its Lease. See whether a reconcile hangs there"
	if s, ok := c.actual(); ok {
		advice += ": kubectl -n " + s.Namespace + " logs " + s.Name + ". If it does, stop that Pod: its objects move once it has released its Lease, or the Lease was taken"
	}

	c.add(Error, ReasonDrainLate, fmt.Sprintf("Shard %s was asked %s ago to give it up, and has not done so; %s. "+
		"Either it still works on the object, or its controller does not acknowledge drains of %s.",
		c.in.Shard, span(waited), to, c.facts.Object.Resource.GroupResource()), advice+".")
}

// unwantedDrain explains a drain that is to be withdrawn.
func (c *ringCase) unwantedDrain() {
	c.add(Warning, ReasonDrainUnwanted, fmt.Sprintf("Shard %s was asked to give it up, and it belongs there again: the rebalancer takes the request back. "+
		"Until then that shard may give it up, and gets it back.", c.in.Shard), c.rebalancerAdvice())
}

// fine explains why all is well, or would be if the shard were.
func (c *ringCase) fine() {
	c.health()

	s, ok := c.actual()
	if !ok || stateNow(s) != lease.Ready {
		return
	}

	why := c.why(*c.key)

	switch {
	case c.gone:
		why = "where it was when its owner went"
	case c.in.Controlled:
		why = "where its owner " + c.ownerName() + " is" + c.through()
	}

	c.add(Info, ReasonAssigned, fmt.Sprintf("It is at shard %s, where it should be in ring %s (%s), and that shard holds its Lease %s, renewed %s.",
		s.Name, c.name, why, id(s), renewed(s)),
		fmt.Sprintf("If nothing happens to it all the same, ask that shard: kubectl -n %s logs %s", s.Namespace, s.Name))
	c.handover()
}

// handover says what the shard of an object has to have seen before it begins with the object.
func (c *ringCase) handover() {
	handover, err := v1alpha1.ParseHandover(c.facts.Object.Meta.Annotations[v1alpha1.HandoverAnnotation(c.name)])
	if err != nil || len(handover) == 0 {
		return
	}

	var all []string
	for gr, version := range handover {
		all = append(all, fmt.Sprintf("%s up to version %s", gr, version))
	}

	slices.Sort(all)
	c.add(Info, ReasonHandover, fmt.Sprintf("What follows it came to shard %s before it did. The shard has begun with it when its caches showed that: %s.",
		c.in.Shard, list(all)), "A shard that still waits says so in its log, and in its metric clusterring_shard_waiting_objects.")
}

// labelWriter says in whose write the shard label came, if that is known and was not the rebalancer's.
func (c *ringCase) labelWriter() {
	manager, at, ok := assignment.Writer(v1alpha1.ShardLabel(c.name), c.facts.Object.Meta)
	if !ok || manager == Rebalancer {
		return
	}

	c.add(Info, ReasonLabelWriter, fmt.Sprintf("Its shard label came in a write of %q at %s, and not from the rebalancer. That may have been a person; or the assigner, "+
		"which adds its label to the writes of others.", manager, at.UTC().Format(time.RFC3339)), "")
}
