package explain

import (
	"github.com/clusterring/clusterring/services/internal/lease"
	"github.com/clusterring/clusterring/services/internal/plan"
)

// steps puts the decision of package plan into a step and who takes it. Two things are added where the plan leaves an object
// alone: that the lease monitor is about to take the Lease of its shard, and that a controlled object will follow its owner.
func (c *ringCase) steps() {
	r := &c.result

	switch c.act.Verb {
	case plan.None:
		r.Next, r.Actor = c.later()
	case plan.Assign, plan.Release:
		r.Next, r.Actor = Assign, Rebalancer
		if c.act.Verb == plan.Release {
			r.Next = Release
		}

		if c.act.TakenFrom == "" {
			break
		}

		if c.act.Verb == plan.Assign {
			r.Next = TakeOver
		}

		if held(c.leases(c.act.TakenFrom)) {
			r.Actor = You // no live read will confirm that it is free
		}
	case plan.Drain:
		r.Next, r.Actor = Drain, Rebalancer
	case plan.Withdraw:
		r.Next, r.Actor = Withdraw, Rebalancer
	case plan.AwaitAcknowledgement:
		r.Next, r.Actor = Acknowledge, shardActor(c.in.Shard)
		if c.in.Controlled {
			r.Next, r.Actor = FollowOwner, shardActor(c.in.Owner.Shard)
		}
	case plan.AwaitShard:
		r.Next, r.Actor = AwaitShard, You
	}
}

// later says what will happen to an object that the plan leaves alone.
func (c *ringCase) later() (Step, string) {
	if s, ok := c.actual(); ok && s.now() == lease.Uncertain {
		return TakeOver, LeaseMonitor
	}

	if c.in.Controlled && c.in.Owner.Draining && c.in.Belongs {
		return FollowOwner, shardActor(c.in.Owner.Shard)
	}

	return Nothing, ""
}

func shardActor(name string) string { return "shard " + name }
