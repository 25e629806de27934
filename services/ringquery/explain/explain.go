package explain

import (
	"cmp"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/lease"
	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/services/internal/plan"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/ringquery/rings"
)

// Short names of the enums of the API, which documents them. A greater severity is worse.
const (
	Info    = pb.Severity_SEVERITY_INFO
	Warning = pb.Severity_SEVERITY_WARNING
	Error   = pb.Severity_SEVERITY_ERROR

	Nothing     = pb.NextStep_NEXT_STEP_NONE
	Assign      = pb.NextStep_NEXT_STEP_ASSIGN
	TakeOver    = pb.NextStep_NEXT_STEP_TAKE_OVER
	Drain       = pb.NextStep_NEXT_STEP_DRAIN
	Acknowledge = pb.NextStep_NEXT_STEP_ACKNOWLEDGE
	Withdraw    = pb.NextStep_NEXT_STEP_WITHDRAW
	Release     = pb.NextStep_NEXT_STEP_RELEASE
	FollowOwner = pb.NextStep_NEXT_STEP_FOLLOW_OWNER
	AwaitShard  = pb.NextStep_NEXT_STEP_AWAIT_SHARD
)

// Actors that take the next step. The actor "shard NAME" is a shard.
const (
	Rebalancer   = "rebalancer"
	LeaseMonitor = "lease monitor"
	You          = "you"
)

// nextShards is the number of next shards in an explanation.
const nextShards = 2

// Explain derives an explanation from the facts: findings for people, the most severe first, and the same facts for
// programs, ring by ring.
func Explain(f *Facts) *pb.ExplainResponse {
	var covering []string

	e := &pb.ExplainResponse{Object: f.Object.message()}

	for i := range f.Rings {
		c := newRingCase(f, &f.Rings[i])
		c.explain()
		e.Findings = append(e.Findings, c.said...)
		e.Rings = append(e.Rings, c.told)

		if c.in.Belongs {
			covering = append(covering, c.Name)
		}
	}

	e.Findings = append(object(f, covering), e.GetFindings()...)
	slices.SortStableFunc(e.GetFindings(), func(a, b *pb.Finding) int {
		return cmp.Compare(b.GetSeverity(), a.GetSeverity())
	})
	e.Healthy = len(e.GetFindings()) > 0 && e.GetFindings()[0].GetSeverity() == Info

	return e
}

// ringCase is one object in one ring.
type ringCase struct {
	facts *Facts
	*Ring

	in  plan.Object
	act plan.Action
	// owner is the main object that the object follows. Nil: there is none.
	owner *resources.Owner
	// key is the partition key of the object. Nil: it is not known, or there is none.
	key *rings.Key

	// told is the part of the answer about the ring. Without an actor, nothing will happen next.
	told *pb.RingExplanation
	findings
}

func newRingCase(f *Facts, r *Ring) *ringCase {
	c := &ringCase{facts: f, Ring: r, findings: findings{ring: r.Name},
		told: &pb.RingExplanation{Ring: r.Name, Role: rings.RoleOf(r.Subject.Role), Next: Nothing}}

	if r.Subject.Role == "" {
		c.in = rings.Labels(c.Keys, f.Object.Meta.Labels)
	} else {
		c.decide(f.Object.Meta)
	}

	c.told.Covered = c.in.Belongs
	c.told.ActualShard, c.told.DesiredShard = pick(c.Shards, c.in.Shard), pick(c.Shards, c.in.Desired)

	if c.in.Belongs {
		c.told.Location = c.Locate(c.Subject.Role, c.Coverage, *c.key, nextShards)
	}

	return c
}

// decide finds out where the object belongs, and what happens to it.
func (c *ringCase) decide(meta *metav1.PartialObjectMetadata) {
	var kin resources.Kin

	if c.Kin != nil {
		kin, c.owner = *c.Kin, c.Kin.Owner

		c.key = &rings.Key{Key: kin.Key, Rule: c.Subject.Resource.Key, In: kin.In(meta.Namespace), Missing: kin.Keyless}
		if c.owner != nil {
			c.key.Rule = c.owner.Resource.Key
		}
	}

	c.in = c.Object(c.Subject, kin, c.Kin != nil && !c.Leaving && c.Coverage != rings.NotCovered)
	if c.owner != nil {
		c.addOwner()
	}

	c.act = plan.Decide(c.space(), c.in)
	if c.in.Labels() {
		c.told.Assignment = c.Assignment(c.in, meta, kin)
	}
}

// space returns which shards work in the namespace of the object whose key counts.
func (c *ringCase) space() membership.Space {
	if c.key == nil {
		return c.View.In(c.facts.Object.Namespace)
	}

	return c.View.In(c.key.In)
}

// selects reports whether the ring selects the object, or the main object that it follows, by its labels.
func (c *ringCase) selects() bool {
	return c.Kin == nil || rings.Selects(c.Subject, *c.Kin, c.in.Labelled)
}

// pick returns the shard of that name. If there are several, it prefers the available one.
func pick(shards []*pb.Shard, name string) (found *pb.Shard) {
	for _, s := range shards {
		if name != "" && s.GetName() == name && (found == nil || s.GetAvailable()) {
			found = s
		}
	}

	return found
}

// addOwner records what is known of the owner of a controlled object.
func (c *ringCase) addOwner() {
	c.told.Owner = &pb.ExplainedOwner{
		Resource: c.owner.Resource.GroupResource().String(), Namespace: c.owner.Namespace, Name: c.owner.Name,
		Found: pb.Found_FOUND_NO,
	}

	if c.Owner != nil && c.Owner.UID == c.owner.UID {
		at := rings.Labels(c.Keys, c.Owner.Labels)
		c.told.Owner.Found, c.told.Owner.Shard, c.told.Owner.Draining = pb.Found_FOUND_YES, at.Shard, at.Draining
		c.in.Owner = plan.Owner{Exists: true, Shard: at.Shard, Draining: at.Draining, Belongs: c.ownerStays()}
	}
}

// ownerStays reports whether the ring covers the owner. The main resource of the owner can stay in the ring when that
// of the object leaves it.
func (c *ringCase) ownerStays() bool {
	listed := slices.ContainsFunc(c.Spec.Resources, func(r v1alpha1.RingResource) bool {
		return c.owner.Resource.GroupResource() == schema.GroupResource{Group: r.Group, Resource: r.Resource}
	})

	return c.Active() && listed && c.selects() && (!c.owner.Resource.Namespaced || c.Coverage != rings.NotCovered)
}

// explain adds all findings about the ring.
func (c *ringCase) explain() {
	if c.Subject.Role == "" {
		c.stray()
		return
	}

	c.steps()

	if !c.coverage() {
		c.leave()
	} else {
		c.place()
	}

	c.conditions()
}

// findings are about a ring, or about the object itself.
type findings struct {
	ring string
	said []*pb.Finding
}

// say adds a finding, and returns it, so that it can get advice. The reason is for programs.
func (f *findings) say(severity pb.Severity, reason, format string, args ...any) *pb.Finding {
	f.said = append(f.said, &pb.Finding{
		Severity: severity, Reason: reason, Ring: f.ring, Message: fmt.Sprintf(format, args...),
	})

	return f.said[len(f.said)-1]
}

// worst returns the highest severity so far.
func (f *findings) worst() pb.Severity {
	worst := Info
	for _, finding := range f.said {
		worst = max(worst, finding.GetSeverity())
	}

	return worst
}

// why describes how the shard of a key is determined.
func (c *ringCase) why(k rings.Key) string {
	return fmt.Sprintf("its key %s is in partition %d", keyText(k), c.View.TableIn(k.In).Partition(k.Hash()))
}

// keyText formats a key as it is hashed, or what it stands for.
func keyText(k rings.Key) string {
	if label, value, ok := k.Label(); ok {
		return "label " + label + "=" + value
	}

	if k.Type() == pb.KeyType_KEY_TYPE_NAMESPACE {
		return "namespace " + k.Name
	}

	return k.String()
}

// steps translates the decision of package plan into the next step and its actor. For an object that the plan leaves
// alone, it adds two cases: the lease monitor is about to take the Lease of the shard, and a controlled object will
// follow its owner.
func (c *ringCase) steps() {
	c.told.Next, c.told.NextActor = steps[c.act.Verb], Rebalancer

	switch taken := c.act.TakenFrom; {
	case c.act.Verb == plan.None:
		c.told.Next, c.told.NextActor = c.later()
	case c.act.Verb == plan.AwaitShard:
		c.told.NextActor = You
	case c.act.Verb == plan.AwaitAcknowledgement && c.in.Controlled:
		c.told.Next, c.told.NextActor = FollowOwner, shardActor(c.in.Owner.Shard)
	case c.act.Verb == plan.AwaitAcknowledgement:
		c.told.NextActor = shardActor(c.in.Shard)
	case taken != "":
		if c.act.Verb == plan.Assign {
			c.told.Next = TakeOver
		}

		if len(c.held(taken)) > 0 && !c.View.Works(taken) {
			c.told.NextActor = You // no live read will confirm that it is free
		}
	}
}

// steps are the next steps by the decisions of package plan.
var steps = map[plan.Verb]pb.NextStep{
	plan.Assign: Assign, plan.Release: Release, plan.Drain: Drain, plan.Withdraw: Withdraw,
	plan.AwaitAcknowledgement: Acknowledge, plan.AwaitShard: AwaitShard,
}

// later returns the next step of an object that the plan leaves alone, and the actor.
func (c *ringCase) later() (pb.NextStep, string) {
	if s := c.actual(); s != nil && stateNow(s) == lease.Uncertain {
		return TakeOver, LeaseMonitor
	}

	// A shard that does not work gives up nothing: the rebalancer moves its owner, and the child is where the owner will
	// be.
	if c.in.Controlled && c.in.Owner.Draining && c.in.Belongs && c.space().Works(c.in.Owner.Shard) {
		return FollowOwner, shardActor(c.in.Owner.Shard)
	}

	return Nothing, ""
}

func shardActor(name string) string { return "shard " + name }
