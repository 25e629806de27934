package explain

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/plan"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/ringquery/rings"
)

// coverage reports whether the ring shards the object, and explains why not.
func (c *ringCase) coverage() bool {
	resource := c.facts.Object.Resource.GroupResource()

	switch {
	case !c.DeletionTimestamp.IsZero():
		c.uncovered(Warning, ReasonRingDeleting, fmt.Sprintf("Ring %s is being deleted, for %s now: it gives up its objects and assigns none.",
			c.name, span(c.facts.Now.Sub(c.DeletionTimestamp.Time))), "")
	case c.Leaving:
		c.uncovered(Warning, ReasonResourceLeft, fmt.Sprintf("Ring %s does not list %s any more, and gives up what it had of them.", c.name, resource), "")
	case c.Coverage == rings.NotCovered:
		c.uncovered(Warning, ReasonNamespaceNotSelected, fmt.Sprintf("Ring %s does not shard objects in namespace %s: its selector is %q, "+
			"and the namespace's labels are %s.", c.name, c.facts.Object.Namespace, c.Selector(), c.namespaceLabels()), c.selectAdvice())
	case c.facts.Object.Meta != nil && c.in.Controlled && c.owner == nil:
		c.noOwner(resource.String())
	default:
		if c.Coverage == rings.Unknown {
			c.add(Info, ReasonNamespaceUnknown, fmt.Sprintf("The server could not read the labels of namespace %s. What is said of ring %s holds if "+
				"its selector %q selects the namespace; if not, the ring does not shard the object.", c.facts.Object.Namespace, c.name, c.Selector()), "")
		}

		return true
	}

	return false
}

// noOwner explains a controlled resource's object that nothing of the ring controls.
func (c *ringCase) noOwner(resource string) {
	rule := fmt.Sprintf("Ring %s shards only those %s that follow one of its main objects (%s)", c.name, resource, c.mainKinds())

	ref := metav1.GetControllerOfNoCopy(c.facts.Object.Meta)
	if ref == nil {
		c.uncovered(Info, ReasonNoController, rule+", and nothing controls this one.",
			"If it should be sharded, its creator must set an owner reference with controller: true.")

		return
	}

	if c.Unread != "" {
		c.uncovered(Warning, ReasonOwnerForbidden, fmt.Sprintf("%s. This one is controlled by %s, which the server may not read: whom it follows is not known.",
			rule, c.Unread), fmt.Sprintf("Grant get on it by a ClusterRole with the label %s: \"true\".", v1alpha1.LabelAggregateToRingQuery))

		return
	}

	by := fmt.Sprintf("is controlled by %s %s (%s)", ref.Kind, ref.Name, ref.APIVersion)
	if _, role, ok := c.Resources.ControllerOf(c.facts.Object.Meta); ok && role == resources.Controlled {
		by += fmt.Sprintf(", which follows none of them either, or through more than %d levels", v1alpha1.MaxDepth)
	}

	c.uncovered(Info, ReasonForeignController, rule+", and this one "+by+".", "")
}

func (c *ringCase) mainKinds() string {
	var kinds []string
	for _, r := range c.Resources.Main() {
		kinds = append(kinds, r.Kind.Kind)
	}

	return list(kinds)
}

// uncovered explains why the ring does not shard the object, and what becomes of labels that the object carries all the same. The
// severity is for an object without labels.
func (c *ringCase) uncovered(severity pb.Severity, reason Reason, message, advice string) {
	if c.in.Labelled || c.in.Draining {
		severity, message = max(severity, Warning), message+" "+c.leftLabels()
	} else if c.facts.Object.Meta != nil && severity == Warning {
		message += " No shard of it works on the object."
	}

	c.add(severity, reason, message, advice)
}

// leftLabels says what becomes of the labels of an object that the ring does not shard.
func (c *ringCase) leftLabels() string {
	still := "It still carries a label of the ring; "
	if c.in.Shard != "" {
		still = "It is still at shard " + c.in.Shard + "; "
	}

	switch {
	case c.act.Verb == plan.Drain:
		return still + "the rebalancer asks that shard to give it up, and the labels go."
	case c.act.Verb == plan.AwaitAcknowledgement && c.in.Controlled:
		return still + "its labels go once its owner's shard has given the owner up."
	case c.act.Verb == plan.AwaitAcknowledgement:
		return still + "that shard was asked to give it up, and the labels go."
	case c.act.TakenFrom != "":
		return still + "that shard is not available, and the labels go once a live read confirms that it does not hold its Lease."
	}

	return still + "the rebalancer removes the ring's labels."
}

// leave adds what hinders an object from leaving the ring.
func (c *ringCase) leave() {
	switch {
	case c.act.TakenFrom != "" && held(c.leases(c.act.TakenFrom)):
		c.heldButUnusable(c.leases(c.act.TakenFrom))
	case c.act.Verb == plan.AwaitAcknowledgement && !c.in.Controlled:
		c.drain()
		c.health()
	case c.act.Verb != plan.None:
		c.health()
	}
}

func (c *ringCase) namespaceLabels() string {
	if c.facts.NamespaceLabels == nil {
		return "not known, but for " + corev1.LabelMetadataName + "=" + c.facts.Object.Namespace
	}

	return labelText(c.facts.NamespaceLabels)
}

func (c *ringCase) selectAdvice() string {
	ns := c.facts.Object.Namespace
	if c.Spec.NamespaceSelector == nil {
		return fmt.Sprintf("By default %s and %s are left out. To shard objects in them, give the ring a namespaceSelector.",
			metav1.NamespaceSystem, v1alpha1.SystemNamespace)
	}

	return fmt.Sprintf("If it should be sharded, label the namespace (kubectl label namespace %s ...) so that the selector matches, "+
		"or change the ring's namespaceSelector.", ns)
}

// stray explains a label of a ring that has nothing to do with the object's resource.
func (c *ringCase) stray() {
	label, value := v1alpha1.ShardLabel(c.name), c.in.Shard
	if !c.in.Labelled {
		label, value = v1alpha1.DrainLabel(c.name), c.facts.Object.Meta.Labels[v1alpha1.DrainLabel(c.name)]
	}

	c.add(Warning, ReasonStrayLabel, fmt.Sprintf("It carries the label %s=%s, but ring %s does not list %s, and has no record of it: no service gives the "+
		"label a meaning, or removes it.", label, value, c.name, c.facts.Object.Resource.GroupResource()),
		"Remove it: "+c.facts.Object.labelCommand(label+"-"))
	c.labelWriter()
}
