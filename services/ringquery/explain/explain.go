package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/key"
	"github.com/clusterring/clusterring/services/internal/plan"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/ringquery/rings"
)

// nextShards is the number of next shards in an explanation.
const nextShards = 2

// Explain derives an explanation from the facts: findings for people, the most severe first, and the same facts for programs, ring by
// ring.
func Explain(f *Facts) *pb.ExplainResponse {
	e := &pb.ExplainResponse{Object: f.Object.message(), Findings: object(f)}

	for i := range f.Rings {
		c := newRingCase(f, &f.Rings[i])
		c.explain()
		e.Findings = append(e.Findings, c.findings...)
		e.Rings = append(e.Rings, c.message())
	}

	slices.SortStableFunc(e.GetFindings(), func(a, b *pb.Finding) int { return cmp.Compare(b.GetSeverity(), a.GetSeverity()) })
	e.Healthy = len(e.GetFindings()) > 0 && e.GetFindings()[0].GetSeverity() == Info

	return e
}

// ringCase is one object in one ring.
type ringCase struct {
	facts *Facts
	*Ring

	name string
	in   plan.Object
	act  plan.Action
	// owner is the main object that the object follows. Nil: there is none. between are the objects between the two, the nearest
	// first.
	owner   *resources.Owner
	between []resources.Owner
	// gone is true if the owner no longer exists, and replaced is true if another object has its name.
	gone, replaced bool

	// key is the partition key of the object. Nil: it is not known, or there is none.
	key *rings.Key
	// told is the owner in the answer. Nil: the object follows no main object of the ring.
	told *pb.ExplainedOwner
	// next is the next change of the object's labels, and actor makes it. An empty actor means that nothing will happen.
	next  pb.NextStep
	actor string

	findings []*pb.Finding
}

func newRingCase(f *Facts, r *Ring) *ringCase {
	c := &ringCase{facts: f, Ring: r, name: r.Name, next: Nothing}

	meta := f.Object.metadata()
	c.in = rings.Labels(c.Keys, meta.Labels)
	c.in.Controlled = r.Role == resources.Controlled

	if r.Role == "" || f.Object.Meta == nil && (c.in.Controlled || c.rule().Label != "") {
		return c
	}

	kin := r.Kin

	switch {
	case r.Role == resources.Main:
		resource := f.Object.Resource
		resource.Key = c.rule()
		c.key = new(rings.KeyOf(resource, meta))
		kin = &resources.Kin{Key: c.key.Key}
	case kin != nil:
		c.key = &rings.Key{Key: kin.Key, Rule: kin.Owner.Resource.Key, Missing: kin.Keyless}
	}

	if kin != nil {
		c.in.Belongs = c.covers()
	}

	if c.in.Belongs {
		c.in.Desired, _ = r.View.Owner(kin.Key)
	}

	if kin != nil {
		c.addOwner(kin)
	}

	if f.Object.Meta != nil {
		c.act = plan.Decide(r.View, c.in)
	}

	return c
}

// rule returns the rule for the keys of the object's resource.
func (c *ringCase) rule() key.Rule {
	resource, _, _ := c.Resources.Find(c.facts.Object.Resource.GroupResource())

	return resource.Key
}

// message returns the part of the answer about the ring.
func (c *ringCase) message() *pb.RingExplanation {
	res := &pb.RingExplanation{
		Ring: c.name, Role: rings.RoleOf(c.Role), Covered: c.in.Belongs, Owner: c.told, Next: c.next, NextActor: c.actor,
		ActualShard: pick(c.Shards, c.in.Shard), DesiredShard: pick(c.Shards, c.in.Desired),
	}

	if c.Role != "" && c.facts.Object.Meta != nil && c.in.Labels() {
		res.Assignment = c.Assignment(c.in, c.facts.Object.Meta, c.owner)
	}

	if c.in.Belongs {
		res.Location = c.Locate(c.Role, c.Coverage, *c.key, nextShards)
	}

	return res
}

// pick returns the shard of that name. If there are several, it prefers the available one.
func pick(shards []rings.Shard, name string) *pb.Shard {
	var found *rings.Shard
	for i := range shards {
		if name != "" && shards[i].Name == name && (found == nil || shards[i].Available) {
			found = &shards[i]
		}
	}

	if found == nil {
		return nil
	}

	return found.Message()
}

// covers reports whether the ring shards objects of this resource in this namespace. If this is not known, it returns true.
func (c *ringCase) covers() bool {
	return c.Active() && !c.Leaving && c.Coverage != rings.NotCovered
}

// addOwner records the owner of a controlled object.
func (c *ringCase) addOwner(kin *resources.Kin) {
	owner := kin.Owner
	if owner == nil {
		return
	}

	c.owner, c.between = owner, kin.Between
	found := c.Owner.Found

	if found == Read && c.Owner.Meta.UID != owner.UID {
		found, c.replaced = Missing, true
	}

	c.gone = found == Missing
	c.told = &pb.ExplainedOwner{
		Resource: owner.Resource.GroupResource().String(), Namespace: owner.Namespace, Name: owner.Name, Found: cmp.Or(found, Forbidden),
	}

	switch found {
	case Read:
		at := rings.Labels(c.Keys, c.Owner.Meta.Labels)
		c.told.Shard, c.told.Draining = at.Shard, at.Draining
		c.in.Owner = plan.Owner{Exists: true, Shard: at.Shard, Draining: at.Draining, Belongs: c.ownerStays()}
	case NotRead, Forbidden:
		// Assume the best. A finding reports that this is an assumption.
		c.in.Owner = plan.Owner{Exists: true, Shard: c.in.Desired, Belongs: c.ownerStays()}
	case Missing:
	}
}

// ownerStays reports whether the ring covers the owner. The main resource of the owner can stay in the ring when that of the object
// leaves it.
func (c *ringCase) ownerStays() bool {
	if !c.Active() {
		return false
	}

	listed := slices.ContainsFunc(c.Spec.Resources, func(r v1alpha1.RingResource) bool {
		gr := c.owner.Resource.GroupResource()
		return r.Group == gr.Group && r.Resource == gr.Resource
	})

	return listed && (!c.owner.Resource.Namespaced || c.Coverage != rings.NotCovered)
}

// explain adds all findings about the ring.
func (c *ringCase) explain() {
	switch {
	case c.Role == "":
		c.stray()
		return
	case c.facts.Object.Meta == nil:
		c.unread()
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

// add adds a finding about the ring.
func (c *ringCase) add(severity pb.Severity, reason Reason, message, advice string) {
	c.findings = append(c.findings, &pb.Finding{Severity: severity, Reason: string(reason), Ring: c.name, Message: message, Advice: advice})
}

// worst returns the highest severity so far.
func (c *ringCase) worst() pb.Severity {
	worst := Info
	for _, f := range c.findings {
		worst = max(worst, f.GetSeverity())
	}

	return worst
}

// unread adds the findings that follow from the object's name alone.
func (c *ringCase) unread() {
	if c.in.Controlled {
		c.add(Info, ReasonBelongs, fmt.Sprintf("Ring %s lists %s as controlled: the object is at the shard of the object that controls it.",
			c.name, c.facts.Object.Resource.GroupResource()), "")

		return
	}

	if label := c.rule().Label; label != "" && c.covers() {
		c.add(Info, ReasonBelongs, fmt.Sprintf("Its label %s determines its shard of ring %s, and is not known.", label, c.name), "")

		return
	}

	if !c.coverage() {
		return
	}

	if c.in.Desired == "" {
		c.noShards()
		return
	}

	c.add(Info, ReasonBelongs, fmt.Sprintf("By its name, it belongs to shard %s of ring %s (%s). It is not known whether it is there.",
		c.in.Desired, c.name, c.why(*c.key)), "")
	c.conditions()
}

// why describes how the shard of a key is determined.
func (c *ringCase) why(k rings.Key) string {
	return fmt.Sprintf("its key %s is in partition %d", keyText(k), c.View.Table().Partition(k.Hash()))
}

// keyText formats a key as it is hashed, or what it stands for.
func keyText(k rings.Key) string {
	if label, value, ok := k.Label(); ok {
		return "label " + label + "=" + value
	}

	if k.Type() == pb.KeyType_KEY_TYPE_NAMESPACE {
		return "namespace " + k.Name
	}

	return strings.Join([]string{k.Group, k.Kind, k.Namespace, k.Name}, "/")
}
