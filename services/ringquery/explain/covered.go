package explain

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/clusterring"
	"github.com/clusterring/clusterring/services/internal/plan"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/ringquery/rings"
)

// object returns the findings about the object itself. The rings named covering shard it.
func object(f *Facts, covering []string) []*pb.Finding {
	var about findings

	if len(f.Rings) == 0 {
		about.say(Info, "NOT_SHARDED", "It is not sharded: no ring lists %s. Its controller, if any, is not sharded.",
			f.Object.Resource.GroupResource())
	}

	if f.Object.Meta == nil {
		about.say(Info, "OBJECT_FORBIDDEN", "The server may not read %s, so it does not know whether the object exists or "+
			"has labels of rings.", f.Object.Resource.GroupResource())

		return about.said
	}

	if at := f.Object.Meta.DeletionTimestamp; !at.IsZero() {
		stays := "is about to disappear."
		if finalizers := f.Object.Meta.Finalizers; len(finalizers) > 0 {
			stays = "stays until its finalizers " + list(finalizers) + " are removed. An object in deletion has a shard like " +
				"any other object, and that shard must remove the finalizers of its controller."
		}

		about.say(Info, "OBJECT_DELETING", "It was deleted %s ago and %s", span(f.Now.Sub(at.Time)), stays)
	}

	for _, label := range slices.Sorted(maps.Keys(f.Object.Meta.Labels)) {
		if !f.unknown(label) {
			continue
		}

		about.say(Warning, "UNKNOWN_RING_LABEL", "It has the label %s=%s of a ring that does not exist: every service "+
			"ignores it, and none removes it. It may come from a backup or from a copy of another object.", label,
			f.Object.Meta.Labels[label]).Advice = "Remove it: " + f.Object.labelCommand(label+"-")
	}

	if len(covering) > 1 {
		about.say(Info, "SEVERAL_RINGS", "The rings %s shard it, each with its own label. The rings are independent, and "+
			"one shard of each ring works on it.", list(covering))
	}

	return about.said
}

// unknown reports whether a label of the object is that of a ring that does not exist.
func (f *Facts) unknown(label string) bool {
	return f.Known != nil &&
		(strings.HasPrefix(label, contract.LabelShardPrefix) || strings.HasPrefix(label, contract.LabelDrainPrefix)) &&
		!slices.ContainsFunc(f.Known, func(r contract.LabelKeys) bool { return label == r.Shard || label == r.Drain })
}

// coverage reports whether the ring shards the object, and explains why not.
func (c *ringCase) coverage() bool {
	resource := c.facts.Object.Resource.GroupResource()

	switch {
	case c.Holder != "":
		c.uncovered(Error, "LABEL_IN_USE", "Ring %s shards nothing: %s.", c.Name, clusterring.LabelInUse(c.ClusterRing,
			c.Holder))
	case !c.DeletionTimestamp.IsZero():
		c.uncovered(Warning, "RING_DELETING", "Ring %s has been in deletion for %s: it releases its objects and assigns "+
			"none.", c.Name, span(c.facts.Now.Sub(c.DeletionTimestamp.Time)))
	case c.Leaving:
		c.uncovered(Warning, "RESOURCE_LEFT", "Ring %s no longer lists %s, and releases its objects of this resource.",
			c.Name, resource)
	case c.Coverage == rings.NotCovered:
		c.uncovered(Warning, "NAMESPACE_NOT_SELECTED", "Ring %s does not shard objects in namespace %s: its selector is %q, "+
			"and the labels of the namespace are %s.", c.Name, c.facts.Object.Namespace, c.Selector(),
			labelText(c.facts.NamespaceLabels)).Advice = c.selectAdvice()
	case !c.selects() && c.in.Controlled:
		which := "is not selected"
		if c.Kin.Orphaned {
			which = "does not exist, and therefore is not selected"
		}

		c.uncovered(Info, "OBJECT_NOT_SELECTED", "It follows %s %s, which %s by spec.objectSelector of ring %s, %q.",
			c.owner.Resource.Kind.Kind, c.owner.Name, which, c.Name, c.Resources.Selector())
	case !c.selects():
		c.uncovered(Info, "OBJECT_NOT_SELECTED", "It is not selected by spec.objectSelector of ring %s, %q: its labels are "+
			"%s.", c.Name, c.Resources.Selector(), labelText(c.facts.Object.Meta.Labels))
	case c.in.Controlled && c.owner == nil:
		c.noOwner(resource.String())
	default:
		if c.Coverage == rings.Unknown {
			c.say(Warning, "NAMESPACE_UNKNOWN", "The selector of namespaces of ring %s cannot be used (%s). The findings about the "+
				"ring apply if a corrected one selects namespace %s.", c.Name, c.Selector(), c.facts.Object.Namespace)
		}

		return true
	}

	return false
}

// noOwner explains an object of a controlled resource that follows no main object of the ring.
func (c *ringCase) noOwner(resource string) {
	var kinds []string
	for _, r := range c.Resources.Main() {
		kinds = append(kinds, r.Kind.Kind)
	}

	rule := fmt.Sprintf("Ring %s shards only %s that follow one of its main objects (%s)", c.Name, resource, list(kinds))

	ref := metav1.GetControllerOfNoCopy(c.facts.Object.Meta)
	if ref == nil {
		c.uncovered(Info, "NO_CONTROLLER", "%s", rule+", and this object has no controller.").Advice = "If it should be " +
			"sharded, its creator must set an owner reference with controller: true."

		return
	}

	by := fmt.Sprintf("is controlled by %s %s (%s)", ref.Kind, ref.Name, ref.APIVersion)
	if _, role, ok := c.Resources.ControllerOf(c.facts.Object.Meta); ok && role == resources.Controlled {
		by += fmt.Sprintf(", which also follows none of them, or through more than %d levels", contract.MaxDepth)
	}

	c.uncovered(Info, "FOREIGN_CONTROLLER", "%s", rule+", and this object "+by+".")
}

// uncovered explains why the ring does not shard the object, and what happens to labels that the object still has. The
// severity is that for an object without labels.
func (c *ringCase) uncovered(severity pb.Severity, reason, format string, args ...any) *pb.Finding {
	also := ""

	if c.in.Labelled || c.in.Draining {
		severity, also = max(severity, Warning), " "+c.leftLabels()
	} else if severity == Warning {
		also = " No shard of the ring works on the object."
	}

	return c.say(severity, reason, "%s%s", fmt.Sprintf(format, args...), also)
}

// leftLabels describes what happens to the labels of an object that the ring does not shard.
func (c *ringCase) leftLabels() string {
	still := "It still has a label of the ring. "
	if c.in.Shard != "" {
		still = "It is still at shard " + c.in.Shard + ". "
	}

	switch {
	case c.act.Verb == plan.Drain:
		return still + "The rebalancer drains it and then removes the labels."
	case c.act.Verb == plan.AwaitAcknowledgement && c.in.Controlled:
		return still + "Its labels are removed when the shard of its owner has released the owner."
	case c.act.Verb == plan.AwaitAcknowledgement:
		return still + "The object is draining, and its labels are removed when the shard releases it."
	case c.act.TakenFrom != "" && c.View.Works(c.act.TakenFrom):
		return "It still has the label of shard " + c.in.Shard + ", which does not watch its namespace. The rebalancer " +
			"removes the labels of the ring."
	case c.act.TakenFrom != "":
		return still + "That shard is not available. The labels are removed when a live read confirms that the shard does " +
			"not hold its Lease."
	}

	return still + "The rebalancer removes the labels of the ring."
}

// leave adds what prevents an object from leaving the ring.
func (c *ringCase) leave() {
	switch {
	case len(c.held(c.act.TakenFrom)) > 0 && !c.View.Works(c.act.TakenFrom):
		c.heldButUnusable()
	case c.act.Verb == plan.AwaitAcknowledgement && !c.in.Controlled:
		c.drain()
		c.health()
	case c.act.Verb != plan.None:
		c.health()
	}
}

func (c *ringCase) selectAdvice() string {
	ns := c.facts.Object.Namespace
	if c.Spec.NamespaceSelector == nil {
		return fmt.Sprintf("By default, %s are excluded. To shard objects in them, set a namespaceSelector in the ring.",
			list(c.Spec.EffectiveNamespaceSelector().MatchExpressions[0].Values))
	}

	return fmt.Sprintf("If the object should be sharded, label the namespace (kubectl label namespace %s ...) so that "+
		"the selector matches, or change the namespaceSelector of the ring.", ns)
}

// stray explains a label of a ring that does not list the object's resource.
func (c *ringCase) stray() {
	label, value := c.Keys.Shard, c.in.Shard
	if !c.in.Labelled {
		label, value = c.Keys.Drain, c.facts.Object.Meta.Labels[c.Keys.Drain]
	}

	c.say(Warning, "STRAY_LABEL", "It has the label %s=%s, but ring %s does not list %s and has no record of it: every "+
		"service ignores the label, and none removes it.", label, value, c.Name,
		c.facts.Object.Resource.GroupResource()).Advice = "Remove it: " + c.facts.Object.labelCommand(label+"-")
	c.labelWriter()
}
