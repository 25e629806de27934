package explain

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/lease"
	"github.com/clusterring/clusterring/services/ringquery/rings"
)

// monitorMayTake is how long the lease monitor may take to act, beyond the time that it has to wait.
const monitorMayTake = 10 * time.Second

// worse has the states of a shard that holds its Lease, from good to bad.
var worse = []lease.State{lease.Ready, lease.Expired, lease.Uncertain}

// stateNow is the state of a shard that holds its Lease. What this server has seen of renewals counts; until it has seen one, the lease
// monitor may know better.
func stateNow(s rings.Shard) lease.State {
	record := lease.Record{Holder: s.Holder, Duration: s.Duration}
	seen := lease.Next(lease.Snapshot{Shard: s.Name, Record: record}, s.Age.Time).State

	if s.Age.AtLeast && slices.Index(worse, s.State) > slices.Index(worse, seen) {
		return s.State
	}

	return seen
}

// id names the Lease.
func id(s rings.Shard) string { return s.Namespace + "/" + s.Name }

// isHeld reports whether the shard itself holds the Lease.
func isHeld(s rings.Shard) bool { return lease.Record{Holder: s.Holder}.HeldBy(s.Name) }

// renewed says when the Lease was renewed.
func renewed(s rings.Shard) string {
	if s.Age.AtLeast {
		return "at least " + span(s.Age.Time) + " ago"
	}

	return span(s.Age.Time) + " ago"
}

// leases returns the Leases of that name.
func (c *ringCase) leases(shard string) []rings.Shard {
	var all []rings.Shard
	for _, s := range c.Shards {
		if s.Name == shard {
			all = append(all, s)
		}
	}

	return all
}

func held(leases []rings.Shard) bool { return slices.ContainsFunc(leases, isHeld) }

// actual returns the Lease of the object's shard if that shard is available.
func (c *ringCase) actual() (rings.Shard, bool) {
	for _, s := range c.leases(c.in.Shard) {
		if s.Available {
			return s, true
		}
	}

	return rings.Shard{}, false
}

// unavailable explains that the object's shard is not available.
func (c *ringCase) unavailable() {
	leases := c.leases(c.in.Shard)
	next := c.afterTakeOver()

	switch {
	case len(leases) == 0:
		c.add(Error, ReasonShardUnknown, fmt.Sprintf("Nobody works on it: it carries the label of shard %s, and ring %s has no Lease of that name. %s "+
			"It waits until it has seen no such Lease for twice the longest duration of a Lease: a process whose Lease was deleted may still work.",
			c.in.Shard, c.name, next), c.rebalancerAdvice())
		c.labelWriter()
	case held(leases):
		c.heldButUnusable(leases)
	default:
		c.add(Error, ReasonShardDead, fmt.Sprintf("Nobody works on it: its shard %s does not hold its Lease %s: %s. %s",
			c.in.Shard, id(leases[0]), lost(leases[0]), next), c.rebalancerAdvice())
	}
}

// heldButUnusable explains a shard that holds its Lease and is not available all the same.
func (c *ringCase) heldButUnusable(leases []rings.Shard) {
	var problem string
	var ids []string

	for _, s := range leases {
		if isHeld(s) {
			ids = append(ids, id(s))
			problem = s.Problem
		}
	}

	if len(ids) > 1 {
		c.add(Error, ReasonShardHeldTwice, fmt.Sprintf("Its shard %s exists twice in ring %s, with the Leases %s: more than one process may work on the object, "+
			"and nothing new is given to that name. It stays as it is while one of them holds its Lease.", c.in.Shard, c.name, strings.Join(ids, " and ")),
			"Start these shards under different names; or stop one of them.")

		return
	}

	c.add(Error, ReasonShardDead, fmt.Sprintf("Its shard %s holds the Lease %s and cannot be used: %s.", c.in.Shard, ids[0], problem),
		"Start the shard under another name.")
}

// lost says how a shard lost its Lease.
func lost(s rings.Shard) string {
	switch s.Holder {
	case "":
		return "it was released, as a shard does when it stops"
	case v1alpha1.LeaseControllerIdentity:
		return "the lease monitor took it, because the shard had not renewed it for twice its duration"
	default:
		return "it is held by " + s.Holder
	}
}

// afterTakeOver says what happens to the object of a shard that is not available.
func (c *ringCase) afterTakeOver() string {
	switch c.next {
	case TakeOver:
		return fmt.Sprintf("The rebalancer gives it to %s as soon as a live read confirms that nobody of that name holds its Lease.", c.act.To)
	case Release:
		return "The rebalancer removes the ring's labels as soon as a live read confirms that nobody of that name holds its Lease."
	case FollowOwner:
		return "It moves once its owner has a shard."
	case AwaitShard:
		return "It stays so until some shard of the ring holds its Lease."
	default:
		return ""
	}
}

// health explains the Lease of the available shard that has the object, unless all is well.
func (c *ringCase) health() {
	s, ok := c.actual()
	if !ok {
		return
	}

	double := 2 * s.Duration

	switch stateNow(s) {
	case lease.Ready, lease.Dead, lease.Orphaned:
	case lease.Expired:
		c.add(Warning, ReasonShardExpired, fmt.Sprintf("Its shard %s has not renewed its Lease %s in time: last %s, and it lasts %s. It keeps the object; "+
			"after %s without renewal the lease monitor takes the Lease%s, and the object goes to another shard.",
			s.Name, id(s), renewed(s), span(s.Duration), span(double), takenIn(s)),
			shardAdvice(s))
	case lease.Uncertain:
		c.uncertain(s, double)
	}
}

// uncertain explains a shard whose Lease is to be taken.
func (c *ringCase) uncertain(s rings.Shard, double time.Duration) {
	// A lease monitor that has just begun waits as long once more.
	if !s.Age.AtLeast && s.Age.Time > 2*double+monitorMayTake {
		c.add(Error, ReasonLeaseNotTaken, fmt.Sprintf("Its shard %s seems to be dead, and the lease monitor has not taken its Lease %s: it was last renewed %s, and it lasts %s. "+
			"Until the Lease is taken, nobody else gets the object.", s.Name, id(s), renewed(s), span(s.Duration)),
			"See whether the lease monitor runs, and what it logs: kubectl -n "+v1alpha1.SystemNamespace+" get pods -l app.kubernetes.io/name=leasemonitor")

		return
	}

	c.add(Error, ReasonShardUncertain, fmt.Sprintf("Its shard %s seems to be dead: its Lease %s was last renewed %s, and it lasts %s. "+
		"The lease monitor takes the Lease now; then the rebalancer gives the object to another shard.", s.Name, id(s), renewed(s), span(s.Duration)),
		shardAdvice(s))
}

// takenIn says in how long the Lease is taken unless it is renewed, if that is known.
func takenIn(s rings.Shard) string {
	if s.Age.AtLeast {
		return ""
	}

	return " (in " + span(2*s.Duration-s.Age.Time) + ")"
}

func shardAdvice(s rings.Shard) string {
	return fmt.Sprintf("See what shard %s does: kubectl -n %s describe pod %s; kubectl -n %s logs %s", s.Name, s.Namespace, s.Name, s.Namespace, s.Name)
}

// maxShards is how many shards a message names, so that it stays readable.
const maxShards = 5

// noShards explains that no shard is available.
func (c *ringCase) noShards() {
	what := "it has no Lease at all"
	if len(c.Shards) > 0 {
		var each []string
		for _, s := range c.Shards {
			reason := s.Problem
			if !isHeld(s) {
				reason = lost(s)
			}

			each = append(each, "shard "+id(s)+": "+reason)
		}

		if more := len(each) - maxShards; more > 0 {
			each = append(each[:maxShards], fmt.Sprintf("and %d more", more))
		}

		what = strings.Join(each, "; ")
	}

	c.add(Error, ReasonNoShards, fmt.Sprintf("Nobody works on it: no shard of ring %s is available (%s). "+
		"As soon as a shard holds its Lease, the rebalancer gives the object to one.", c.name, what),
		fmt.Sprintf("Start the controller's shards, or see why they do not hold their Leases: kubectl get leases -A -l %s=%s -L %s",
			v1alpha1.LabelClusterRing, c.name, v1alpha1.LabelState))
}
