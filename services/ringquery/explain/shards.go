package explain

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/lease"
	"github.com/clusterring/clusterring/services/internal/plan"
)

// monitorMayTake is how long the lease monitor can take to act after the time for which it has to wait.
const monitorMayTake = 10 * time.Second

// stateNow returns the state of a shard that holds its Lease. It uses the renewals that this server has seen. If it has
// seen none, it returns the state that the lease monitor reports, if that is worse.
func stateNow(s *pb.Shard) lease.State {
	record := lease.Record{Holder: s.GetHolder(), Duration: s.GetLeaseDuration().AsDuration()}
	seen := lease.Next(lease.Snapshot{Shard: s.GetName(), Record: record}, s.GetRenewalAge().AsDuration()).State

	if s.GetAgeIsLowerBound() {
		switch reported := s.GetState(); {
		case reported == pb.ShardState_SHARD_STATE_UNCERTAIN:
			return lease.Uncertain
		case reported == pb.ShardState_SHARD_STATE_EXPIRED && seen == lease.Ready:
			return lease.Expired
		}
	}

	return seen
}

// id names the Lease.
func id(s *pb.Shard) string { return s.GetNamespace() + "/" + s.GetName() }

// renewed describes when the Lease was renewed.
func renewed(s *pb.Shard) string {
	if s.GetAgeIsLowerBound() {
		return "at least " + span(s.GetRenewalAge().AsDuration()) + " ago"
	}

	return span(s.GetRenewalAge().AsDuration()) + " ago"
}

// leases returns the Leases of that name.
func (c *ringCase) leases(shard string) []*pb.Shard {
	var all []*pb.Shard

	for _, s := range c.Shards {
		if s.GetName() == shard {
			all = append(all, s)
		}
	}

	return all
}

// held returns those that the shard itself holds.
func (c *ringCase) held(shard string) []*pb.Shard {
	return slices.DeleteFunc(c.leases(shard), func(s *pb.Shard) bool {
		return !lease.Record{Holder: s.GetHolder()}.HeldBy(s.GetName())
	})
}

// actual returns the Lease of the object's shard if that shard works. Nil: it does not.
func (c *ringCase) actual() *pb.Shard {
	if held := c.held(c.in.Shard); len(held) > 0 && c.space().Works(c.in.Shard) {
		return held[0]
	}

	return nil
}

// unavailable explains that the object's shard is not available.
func (c *ringCase) unavailable() {
	if c.View.Works(c.in.Shard) {
		c.unwatched()
		return
	}

	leases := c.leases(c.in.Shard)
	next := fmt.Sprintf("The rebalancer assigns it to shard %s as soon as a live read confirms that no shard of that name "+
		"holds its Lease.", c.act.To)

	switch {
	case len(leases) == 0:
		c.say(Error, "SHARD_UNKNOWN", "No shard works on it: it has the label of shard %s, and ring %s has no Lease of that "+
			"name. %s The rebalancer first waits until it has seen no such Lease for twice the longest duration of a Lease, "+
			"because a process whose Lease was deleted may still work.", c.in.Shard, c.Name, next).Advice = c.rebalancerAdvice()
		c.labelWriter()
	case len(c.held(c.in.Shard)) > 0:
		c.heldButUnusable()
	default:
		c.say(Error, "SHARD_DEAD", "No shard works on it: its shard %s does not hold its Lease %s: %s. %s", c.in.Shard,
			id(leases[0]), lost(leases[0]), next).Advice = c.rebalancerAdvice()
	}
}

// heldButUnusable explains a shard that holds its Lease but is not available.
func (c *ringCase) heldButUnusable() {
	var ids []string

	leases := c.held(c.in.Shard)
	for _, s := range leases {
		ids = append(ids, id(s))
	}

	if len(ids) > 1 {
		c.say(Error, "SHARD_HELD_TWICE", "Its shard %s exists twice in ring %s, with the Leases %s: more than one process "+
			"may work on the object, and the name gets no new objects. The object stays there while one of them holds its "+
			"Lease.", c.in.Shard, c.Name, strings.Join(ids, " and ")).Advice = "Start these shards under different names, or " +
			"stop one of them."

		return
	}

	c.say(Error, "SHARD_DEAD", "Its shard %s holds the Lease %s but cannot be used: %s.", c.in.Shard, ids[0],
		leases[0].GetProblem()).Advice = "Start the shard under another name."
}

// lost describes how a shard lost its Lease.
func lost(s *pb.Shard) string {
	switch s.GetHolder() {
	case "":
		return "the shard released it, as shards do when they stop"
	case contract.LeaseControllerIdentity:
		return "the lease monitor took it, because the shard had not renewed it for twice its duration"
	default:
		return "it is held by " + s.GetHolder()
	}
}

// health explains problems with the Lease of the shard that works on the object.
func (c *ringCase) health() {
	s := c.actual()
	if s == nil {
		return
	}

	age, allowed := s.GetRenewalAge().AsDuration(), s.GetLeaseDuration().AsDuration()
	lastRenewed := fmt.Sprintf("was last renewed %s, and its duration is %s", renewed(s), span(allowed))

	switch state := stateNow(s); {
	case state == lease.Expired:
		c.say(Warning, "SHARD_EXPIRED", "Its shard %s has not renewed its Lease %s in time: it %s. The shard keeps the "+
			"object. After %s without a renewal, the lease monitor takes the Lease, and the object moves to another shard.",
			s.GetName(), id(s), lastRenewed, span(2*allowed)).Advice = c.shardAdvice(s)
	case state != lease.Uncertain:
	// a lease monitor that has just started waits for the same time again
	case !s.GetAgeIsLowerBound() && age > 4*allowed+monitorMayTake:
		c.say(Error, "LEASE_NOT_TAKEN", "Its shard %s seems to be dead, and the lease monitor has not taken its Lease %s: "+
			"it %s. Until the Lease is taken, no other shard gets the object.", s.GetName(), id(s), lastRenewed).Advice =
			"Check whether the lease monitor runs, and what it logs: kubectl -n " + contract.SystemNamespace + " get pods -l " +
				"app.kubernetes.io/name=leasemonitor"
	default:
		c.say(Error, "SHARD_UNCERTAIN", "Its shard %s seems to be dead: its Lease %s %s. The lease monitor is about to take "+
			"the Lease. Then the rebalancer assigns the object to another shard.", s.GetName(), id(s), lastRenewed).Advice =
			c.shardAdvice(s)
	}
}

func (c *ringCase) shardAdvice(s *pb.Shard) string {
	pod := c.podOf(s)

	return fmt.Sprintf("Check shard %s: kubectl -n %s describe pod %s; kubectl -n %s logs %s", s.GetName(),
		s.GetNamespace(), pod, s.GetNamespace(), pod)
}

// podOf returns the name of the Pod that runs the shard.
func (c *ringCase) podOf(s *pb.Shard) string {
	for _, h := range c.Status.Holders {
		if h.Shard == s.GetName() {
			return h.Pod
		}
	}

	return s.GetName()
}

// noShards explains that no shard is available.
func (c *ringCase) noShards() {
	if len(c.View.AvailableShards()) > 0 {
		c.unwatched()
		return
	}

	now, which := "No shard works on it", fmt.Sprintf("0 of %d with a Lease", len(c.Shards))
	if s := c.actual(); s != nil {
		now, which = "Soon, no shard works on it", fmt.Sprintf("shard %s works on it until it stops, as it was told to",
			id(s))
	}

	c.say(Error, "NO_SHARDS", "%s: no shard of ring %s is available (%s). As soon as a shard holds its Lease, the "+
		"rebalancer assigns the object.", now, c.Name, which).Advice = fmt.Sprintf("Start the shards of the controller, or "+
		"find out why they do not hold their Leases: kubectl ring get %s; kubectl get leases -A -l %s=%[1]s -L %[3]s", c.Name,
		contract.LabelClusterRing, contract.LabelState)
}

// unwatched explains that the object's shard, or every shard, works, but does not watch the namespace.
func (c *ringCase) unwatched() {
	who := fmt.Sprintf("no available shard of ring %s watches", c.Name)
	if c.in.Shard != "" && c.View.Works(c.in.Shard) {
		who = fmt.Sprintf("shard %s, which it has the label of, does not watch", c.in.Shard)
	}

	next := "As soon as an available shard does, the rebalancer assigns the object."

	if c.act.Verb == plan.Assign {
		next = fmt.Sprintf("The rebalancer is about to assign the object to shard %s, which does.", c.act.To)
	}

	c.say(Error, "NAMESPACE_NOT_WATCHED", "No shard works on it: %s its namespace %s (%s). %s", who,
		c.facts.Object.Namespace, strings.Join(c.View.Restrictions(), "; "), next).Advice = "Start the shards with this " +
		"namespace (the namespaces of the manager's cache), or leave it out in spec.namespaceSelector of the ring."
}

// span formats a duration for people, to the second or coarser.
func span(d time.Duration) string { return duration.HumanDuration(max(d, 0).Round(time.Second)) }

// list joins names with commas and an "and".
func list(names []string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}

	last := len(names) - 1

	return strings.Join(names[:last], ", ") + " and " + names[last]
}

// sentence ends a text with a period, unless the text of somebody else that it ends with already ends a sentence.
func sentence(text string) string {
	text = strings.TrimRight(text, " \n")
	if strings.HasSuffix(text, ".") || strings.HasSuffix(text, "?") || strings.HasSuffix(text, "!") {
		return text
	}

	return text + "."
}

// labelText formats labels as kubectl does.
func labelText(set map[string]string) string {
	return strings.ReplaceAll(labels.FormatLabels(set), ",", ", ")
}

// labelCommand returns the command that changes a label of the object. "key-" removes the label.
func (o *Object) labelCommand(change string) string {
	scope := ""
	if o.Namespace != "" {
		scope = " -n " + o.Namespace
	}

	return fmt.Sprintf("kubectl%s label %s %s %s", scope, o.Resource.GroupResource(), o.Name, change)
}

// statusCommand returns the command that shows the status of a ring.
func statusCommand(ring string) string {
	return "kubectl describe clusterring " + ring
}

// rebalancerAdvice returns how to check the rebalancer.
func (c *ringCase) rebalancerAdvice() string {
	return "If this takes more than a few seconds, check what the rebalancer reports about the ring, and whether it " +
		"runs: " + statusCommand(c.Name) + "; kubectl -n " + contract.SystemNamespace + " get pods -l " +
		"app.kubernetes.io/name=rebalancer"
}
