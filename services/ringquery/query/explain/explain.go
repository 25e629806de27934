package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/key"
	"github.com/clusterring/clusterring/services/internal/plan"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/ringquery/query/assignment"
)

// Explain returns what follows from the facts.
func Explain(f *Facts) Explanation {
	e := Explanation{Findings: object(f)}

	for i := range f.Rings {
		c := newRingCase(f, &f.Rings[i])
		c.explain()
		e.Findings = append(e.Findings, c.findings...)
		e.Rings = append(e.Rings, c.result)
	}

	slices.SortStableFunc(e.Findings, func(a, b Finding) int { return cmp.Compare(b.Severity, a.Severity) })

	return e
}

// ringCase is one object in one ring.
type ringCase struct {
	facts *Facts
	*Ring

	name string
	in   plan.Object
	act  plan.Action
	// owner is the main object that the object follows; nil if there is none. between are those between the two, the nearest first.
	owner   *resources.Owner
	between []resources.Owner
	// gone says that the owner does not exist any more; replaced, that another object has its name.
	gone, replaced bool

	findings []Finding
	result   RingExplanation
}

func newRingCase(f *Facts, r *Ring) *ringCase {
	c := &ringCase{facts: f, Ring: r, name: r.Declared.Name}
	c.result = RingExplanation{Ring: c.name, Role: r.Role, Next: Nothing}

	meta := metav1.Object(f.Object.named())
	if f.Object.Meta != nil {
		meta = f.Object.Meta
		c.in = assignment.Labels(c.name, meta.GetLabels())
		c.result.DrainTime, _ = assignment.DrainTime(c.name, meta)
	}

	c.in.Controlled = r.Role == resources.Controlled
	c.result.Shard = c.in.Shard

	if r.Role == "" || f.Object.Meta == nil && c.in.Controlled {
		return c
	}

	kin := r.Kin
	if r.Role == resources.Main {
		kin = &resources.Kin{Key: key.OfObject(f.Object.Resource.Kind.GroupKind(), meta)}
	}

	c.in.Belongs = kin != nil && c.covers()
	c.result.Covered = c.in.Belongs

	if c.in.Belongs {
		c.in.Desired, _ = r.View.Owner(kin.Key)
		c.result.Desired = c.in.Desired
	}

	if kin != nil {
		c.result.Key = &kin.Key
		c.addOwner(kin)
	}

	if f.Object.Meta != nil {
		c.result.State, _ = assignment.StateOf(r.View, c.in)
		c.act = plan.Decide(r.View, c.in)
	}

	return c
}

// named is the object as far as its name tells.
func (o *Object) named() *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name}}
}

// covers says whether the ring shards objects of that resource in that namespace. If that is not known, it is assumed.
func (c *ringCase) covers() bool {
	return c.Declared.DeletionTimestamp.IsZero() && !c.Leaving && c.Coverage != NotSelected
}

// addOwner takes note of the owner of a controlled object.
func (c *ringCase) addOwner(kin *resources.Kin) {
	owner := kin.Owner
	if owner == nil {
		return
	}

	c.owner, c.between = owner, kin.Between
	told := &OwnerExplanation{NamespacedName: owner.NamespacedName, Resource: owner.Resource, Found: c.Owner.Found}
	c.result.Owner = told

	if told.Found == Read && c.Owner.Meta.UID != owner.UID {
		told.Found, c.replaced = Missing, true
	}

	c.gone = told.Found == Missing

	switch told.Found {
	case Read:
		at := assignment.Labels(c.name, c.Owner.Meta.Labels)
		told.Shard, told.Draining = at.Shard, at.Draining
		c.in.Owner = plan.Owner{Exists: true, Shard: at.Shard, Draining: at.Draining, Belongs: c.ownerStays()}
	case NotRead, Forbidden:
		// The best that can be assumed; a finding says that it is no more than that.
		c.in.Owner = plan.Owner{Exists: true, Shard: c.in.Desired, Belongs: c.ownerStays()}
	case Missing:
	}
}

// ownerStays says whether the ring covers the owner. Its resource is a main one, so it may stay where the object's leaves.
func (c *ringCase) ownerStays() bool {
	if !c.Declared.DeletionTimestamp.IsZero() {
		return false
	}

	listed := slices.ContainsFunc(c.Declared.Spec.Resources, func(r v1alpha1.RingResource) bool {
		gr := c.owner.Resource.GroupResource()
		return r.Group == gr.Group && r.Resource == gr.Resource
	})

	return listed && (!c.owner.Resource.Namespaced || c.Coverage != NotSelected)
}

// explain says what is to be said about the ring.
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
func (c *ringCase) add(severity Severity, reason Reason, message, advice string) {
	c.findings = append(c.findings, Finding{Severity: severity, Reason: reason, Ring: c.name, Message: message, Advice: advice})
}

// worst returns the highest severity so far.
func (c *ringCase) worst() Severity {
	worst := Info
	for _, f := range c.findings {
		worst = max(worst, f.Severity)
	}

	return worst
}

// unread says what follows from the object's name alone.
func (c *ringCase) unread() {
	if c.in.Controlled {
		c.add(Info, ReasonBelongs, fmt.Sprintf("Ring %s lists %s as controlled: the object is where the object is that controls it.",
			c.name, c.facts.Object.Resource.GroupResource()), "")

		return
	}

	if !c.coverage() {
		return
	}

	if c.in.Desired == "" {
		c.noShards()
		return
	}

	c.add(Info, ReasonBelongs, fmt.Sprintf("By its name it belongs to shard %s of ring %s (%s). Whether it is there is not known.",
		c.in.Desired, c.name, c.why(*c.result.Key)), "")
	c.conditions()
}

// why says how the shard of a key follows.
func (c *ringCase) why(k key.Key) string {
	return fmt.Sprintf("its key %s falls on partition %d", keyText(k), c.View.Table().Partition(k.Hash()))
}

// keyText writes a key as it is hashed.
func keyText(k key.Key) string {
	return strings.Join([]string{k.Group, k.Kind, k.Namespace, k.Name}, "/")
}
