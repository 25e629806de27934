package explain

import (
	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/lease"
	"github.com/clusterring/clusterring/services/internal/plan"
)

// steps translates the decision of package plan into the next step and its actor. For an object that the plan leaves alone, it adds
// two cases: the lease monitor is about to take the Lease of the shard, and a controlled object will follow its owner.
func (c *ringCase) steps() {
	switch c.act.Verb {
	case plan.None:
		c.next, c.actor = c.later()
	case plan.Assign, plan.Release:
		c.next, c.actor = Assign, Rebalancer
		if c.act.Verb == plan.Release {
			c.next = Release
		}

		if c.act.TakenFrom == "" {
			break
		}

		if c.act.Verb == plan.Assign {
			c.next = TakeOver
		}

		if held(c.leases(c.act.TakenFrom)) {
			c.actor = You // no live read will confirm that it is free
		}
	case plan.Drain:
		c.next, c.actor = Drain, Rebalancer
	case plan.Withdraw:
		c.next, c.actor = Withdraw, Rebalancer
	case plan.AwaitAcknowledgement:
		c.next, c.actor = Acknowledge, shardActor(c.in.Shard)
		if c.in.Controlled {
			c.next, c.actor = FollowOwner, shardActor(c.in.Owner.Shard)
		}
	case plan.AwaitShard:
		c.next, c.actor = AwaitShard, You
	}
}

// later returns the next step of an object that the plan leaves alone, and the actor.
func (c *ringCase) later() (pb.NextStep, string) {
	if s, ok := c.actual(); ok && stateNow(s) == lease.Uncertain {
		return TakeOver, LeaseMonitor
	}

	if c.in.Controlled && c.in.Owner.Draining && c.in.Belongs {
		return FollowOwner, shardActor(c.in.Owner.Shard)
	}

	return Nothing, ""
}

func shardActor(name string) string { return "shard " + name }
