package explain

import (
	"fmt"

	"github.com/clusterring/clusterring/services/internal/plan"
)

// ownerName names the owner, as in "Website blog".
func (c *ringCase) ownerName() string {
	return c.owner.Resource.Kind.Kind + " " + c.owner.Name
}

// through says through whom the object follows its owner; nothing if that controls it itself.
func (c *ringCase) through() string {
	var all []string
	for _, o := range c.between {
		all = append(all, o.Resource.Kind.Kind+" "+o.Name)
	}

	if len(all) == 0 {
		return ""
	}

	return ", which it follows through " + list(all)
}

// ownerWithoutShard explains an object that goes before its owner, which nobody works on.
func (c *ringCase) ownerWithoutShard() {
	at := "has no shard"
	if c.in.Owner.Shard != "" {
		at = fmt.Sprintf("carries the label of shard %s, which is not available", c.in.Owner.Shard)
	}

	severity, itself := Warning, fmt.Sprintf("Shard %s keeps the object meanwhile.", c.in.Shard)

	switch {
	case c.in.Shard == "":
		severity, itself = Error, "Nobody works on it: it has no shard either."
	case c.act.Verb == plan.None:
		itself = fmt.Sprintf("It is at shard %s already, where the owner goes.", c.in.Shard)
	}

	if severity == Error && c.age() < young && c.in.Shard == "" {
		severity, itself = Info, "It is only "+span(c.age())+" old."
	}

	c.add(severity, ReasonOwnerWithoutShard, fmt.Sprintf("Its owner %s %s. %s What an object controls goes before it: the rebalancer brings all of that to shard %s, and then the owner.",
		c.ownerName(), at, itself, c.in.Desired), "Ask about the owner: its explanation says what keeps it.")
	c.health()
}

// ownerBetween reports whether the owner of a controlled object has no available shard, and will get one.
func (c *ringCase) ownerBetween() bool {
	return c.in.Controlled && c.in.Belongs && c.in.Owner.Exists && c.in.Desired != "" && !c.View.Available(c.in.Owner.Shard)
}

// ownerDraining explains an object at another shard than its owner, which is about to move on.
func (c *ringCase) ownerDraining() {
	c.add(Warning, ReasonOwnerDraining, fmt.Sprintf("Its owner %s is at shard %s, which was asked to give the owner up. The object stays at shard %s "+
		"until the owner has moved, and then follows.", c.ownerName(), c.in.Owner.Shard, c.in.Shard), "Ask about the owner: its explanation says what keeps it.")
}

// ownerNotes adds what is to be known of the owner beside what has been said.
func (c *ringCase) ownerNotes() {
	if c.owner == nil || !c.in.Belongs {
		return
	}

	switch {
	case c.told.GetFound() == Forbidden:
		c.add(Warning, ReasonOwnerForbidden, fmt.Sprintf("The server may not read the owner %s. It takes for granted that the owner is where it belongs; "+
			"if it is not, the object goes where the owner is.", c.ownerName()), "")
	case c.gone:
		also := ""
		if c.replaced {
			also = " (another object has that name now)"
		}

		c.add(Warning, ReasonOwnerGone, fmt.Sprintf("Its owner %s does not exist any more%s, so the garbage collector is about to delete the object. "+
			"Until then it is at an available shard, so that somebody sees to its finalizers.", c.ownerName(), also),
			"If it stays, look for finalizers on it, and at the garbage collector of the cluster.")
	case c.next == FollowOwner && c.in.Shard == c.in.Owner.Shard && c.in.Owner.Draining:
		c.add(Warning, ReasonOwnerDraining, fmt.Sprintf("Shard %s was asked to give up its owner %s. Once it has, the object follows the owner.",
			c.in.Shard, c.ownerName()), "")
	}
}
