package explain

import (
	"fmt"

	"github.com/clusterring/clusterring/services/internal/plan"
)

// ownerName names the owner, as in "Website blog".
func (c *ringCase) ownerName() string {
	return c.owner.Resource.Kind.Kind + " " + c.owner.Name
}

// through names the objects between the object and its owner. Empty: the owner controls it directly.
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

// ownerWithoutShard explains an object that moves before its owner, on which no shard works.
func (c *ringCase) ownerWithoutShard() {
	at := "has no shard"
	if c.in.Owner.Shard != "" {
		at = fmt.Sprintf("has the label of shard %s, which is not available", c.in.Owner.Shard)
	}

	severity, itself := Warning, fmt.Sprintf("Meanwhile, shard %s keeps the object.", c.in.Shard)

	switch {
	case c.in.Shard == "":
		severity, itself = Error, "No shard works on the object: it has no shard either."
	case c.act.Verb == plan.None:
		itself = fmt.Sprintf("The object is already at shard %s, to which the owner moves.", c.in.Shard)
	}

	if severity == Error && c.age() < young && c.in.Shard == "" {
		severity, itself = Info, "The object is only "+span(c.age())+" old."
	}

	c.add(severity, ReasonOwnerWithoutShard, fmt.Sprintf("Its owner %s %s. %s Controlled objects move before their owner: the rebalancer moves them to shard %s, and then the owner.",
		c.ownerName(), at, itself, c.in.Desired), "Explain the owner to see why it does not move.")
	c.health()
}

// ownerBetween reports whether the owner of a controlled object has no available shard and will get one.
func (c *ringCase) ownerBetween() bool {
	return c.in.Controlled && c.in.Belongs && c.in.Owner.Exists && c.in.Desired != "" && !c.View.Works(c.in.Owner.Shard)
}

// ownerDraining explains an object at another shard than its owner, which is about to move.
func (c *ringCase) ownerDraining() {
	c.add(Warning, ReasonOwnerDraining, fmt.Sprintf("Its owner %s is draining from shard %s. The object stays at shard %s "+
		"until the owner has moved, and then follows.", c.ownerName(), c.in.Owner.Shard, c.in.Shard), "Explain the owner to see why it does not move.")
}

// ownerNotes adds further findings about the owner.
func (c *ringCase) ownerNotes() {
	if c.owner == nil || !c.in.Belongs {
		return
	}

	switch {
	case c.told.GetFound() == Forbidden:
		c.add(Warning, ReasonOwnerForbidden, fmt.Sprintf("The server may not read the owner %s. It assumes that the owner is where it belongs. "+
			"Otherwise, the object moves to where the owner is.", c.ownerName()), "")
	case c.gone:
		also := ""
		if c.replaced {
			also = " (another object has its name now)"
		}

		c.add(Warning, ReasonOwnerGone, fmt.Sprintf("Its owner %s no longer exists%s, so the garbage collector is about to delete the object. "+
			"Until then, the object is at an available shard, which can remove its finalizers.", c.ownerName(), also),
			"If the object stays, check its finalizers and the garbage collector of the cluster.")
	case c.next == FollowOwner && c.in.Shard == c.in.Owner.Shard && c.in.Owner.Draining:
		c.add(Warning, ReasonOwnerDraining, fmt.Sprintf("Shard %s was asked to release its owner %s. When the owner has moved, the object follows.",
			c.in.Shard, c.ownerName()), "")
	}
}
