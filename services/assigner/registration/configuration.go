// Package registration keeps the API server calling the assigner for the right writes, and refusing the wrong ones: it
// maintains one MutatingWebhookConfiguration per ring, and one ValidatingAdmissionPolicyBinding per ring with a fence.
//
// It reads ClusterRings, their resources, and the CA bundle. [Configuration] and [Fence] decide what to register. The
// [Reconciler], which runs only in the leader, writes it and reports the result in the ring's conditions
// WebhookRegistered and Fenced.
//
// # Invariants
//
//  1. The registration depends only on the ring, except for a secret at the end of the webhook's path: a configuration
//     that is edited or deleted is restored.
//  2. A ring that is gone, or being deleted, has no configuration. No configuration remains of rings that were never
//     recreated.
//  3. The API server does not call the assigner if the answer could not change anything: for objects with a shard,
//     unless that label changes, or the one that is their key; for main objects that the ring does not select; for
//     controlled objects without a controller among the ring's main resources; and for writes of the rebalancer.
//  4. A fence lasts as long as its ring: until the last label is gone, it protects objects that still carry one.
package registration

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/key"
	"github.com/clusterring/clusterring/services/internal/resources"
)

// annotationInjectCA asks cert-manager's CA injector to fill in the bundle, and names the Certificate to take it from.
const annotationInjectCA = "cert-manager.io/inject-ca-from"

// labelApp is the recommended label of Kubernetes for the name of an application.
const labelApp = "app.kubernetes.io/name"

// labelNoEnforcer asks the admissions enforcer of Azure's Kubernetes service (AKS) to leave a webhook configuration as
// it is. The ring decides which namespaces it covers.
const labelNoEnforcer = "admissions.enforcer/disabled"

// Target describes how API servers reach and verify the assigner. It does not change while it is in use.
type Target struct {
	// URL is the base of the webhook's address, without a path. If it is empty, Service is used.
	URL string
	// Service is the Service in front of the assigner, without a path.
	Service admissionregistrationv1.ServiceReference
	// InjectCAFrom identifies cert-manager's Certificate, as namespace/name. If it is set, cert-manager fills in the
	// bundle.
	InjectCAFrom string
	// RebalancerUsername is the user for whose writes the API server does not call the assigner.
	RebalancerUsername string
	// TimeoutSeconds is how long a user's write waits for an assigner that does not answer: 1 to 30.
	TimeoutSeconds int32
	// Port is the port that the assigner's Pods listen on. Messages name it.
	Port string
}

// Configuration returns the webhook configuration of a ring, including all fields that the API server would default.
// Its path ends with the secret. It does not contain the bundle; see [Target].InjectCAFrom.
func Configuration(
	ring *v1alpha1.ClusterRing, set *resources.Set, t Target, secret string,
) *admissionregistrationv1.MutatingWebhookConfiguration {
	c := &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{
			Name: contract.WebhookConfigurationName(ring.Name),
			Labels: map[string]string{contract.LabelClusterRing: ring.Name, labelApp: v1alpha1.AppControllerSharding,
				labelNoEnforcer: "true"},
			OwnerReferences: ownedBy(ring),
		},
		// The first one must not see what the second one adds: a shard releases an object, and the assigner assigns it in the
		// same write.
		Webhooks: []admissionregistrationv1.MutatingWebhook{
			onLabelChange(ring, set, t, secret), onMissingLabel(ring, set, t, secret), onDryRun(ring, t, secret),
		},
	}

	if t.InjectCAFrom != "" {
		c.Annotations = map[string]string{annotationInjectCA: t.InjectCAFrom}
	}

	return c
}

// webhook returns what the webhooks of a ring have in common.
func webhook(ring *v1alpha1.ClusterRing, t Target, secret string) admissionregistrationv1.MutatingWebhook {
	return admissionregistrationv1.MutatingWebhook{
		ClientConfig:            t.clientConfig(ring.Name, secret),
		FailurePolicy:           ptr.To(admissionregistrationv1.Ignore),
		MatchPolicy:             ptr.To(admissionregistrationv1.Equivalent),
		NamespaceSelector:       ring.Spec.EffectiveNamespaceSelector(),
		SideEffects:             ptr.To(admissionregistrationv1.SideEffectClassNone),
		TimeoutSeconds:          new(t.TimeoutSeconds),
		AdmissionReviewVersions: []string{"v1"},
		// A webhook that runs after ours may change or drop labels, or give the object its controller. The call is
		// idempotent, and is not repeated while the labels are as they should be.
		ReinvocationPolicy: ptr.To(admissionregistrationv1.IfNeededReinvocationPolicy),
	}
}

// onMissingLabel returns the webhook for objects without a shard.
func onMissingLabel(
	ring *v1alpha1.ClusterRing, set *resources.Set, t Target, secret string,
) admissionregistrationv1.MutatingWebhook {
	w := webhook(ring, t, secret)
	w.Name, w.Rules = contract.WebhookName, rulesFor(set, admissionregistrationv1.Create, admissionregistrationv1.Update)
	w.ObjectSelector = selects(ring.LabelKeys().Shard, metav1.LabelSelectorOpDoesNotExist)
	w.MatchConditions = matchConditions(ring, set, t.RebalancerUsername)

	return w
}

// onLabelChange returns the webhook for updates of objects with a shard that change the label, which the assigner puts
// back in the same write, or the label that is the key of the object, for which the assigner asks the shard to release
// the object. It goes to the same place as the other.
//
// It covers the updates of subresources, some of which can change labels. A scale has no labels, so the selector
// excludes it.
func onLabelChange(
	ring *v1alpha1.ClusterRing, set *resources.Set, t Target, secret string,
) admissionregistrationv1.MutatingWebhook {
	w := webhook(ring, t, secret)
	w.Name, w.Rules = contract.LabelsWebhookName, rulesFor(set, admissionregistrationv1.Update)
	w.ObjectSelector = selects(ring.LabelKeys().Shard, metav1.LabelSelectorOpExists)
	// the assigner tells people who keeps changing labels
	w.SideEffects = ptr.To(admissionregistrationv1.SideEffectClassNoneOnDryRun)
	w.MatchConditions = []admissionregistrationv1.MatchCondition{
		{Name: conditionLabels, Expression: notByRebalancer(t.RebalancerUsername) + " && (" + labelsChange(ring) + ")"},
	}

	for i := range w.Rules {
		w.Rules[i].Resources = append(w.Rules[i].Resources, w.Rules[i].Resources[0]+"/*")
	}

	return w
}

// ownedBy makes the garbage collector remove what the assigner has registered for a ring. The ring does not wait for
// it: the assigner may be gone when the ring is deleted.
func ownedBy(ring *v1alpha1.ClusterRing) []metav1.OwnerReference {
	return []metav1.OwnerReference{{
		APIVersion: v1alpha1.GroupVersion.String(),
		Kind:       "ClusterRing",
		Name:       ring.Name,
		UID:        ring.UID,
	}}
}

func (t Target) clientConfig(ring, secret string) admissionregistrationv1.WebhookClientConfig {
	path := contract.WebhookPath(ring) + "/" + secret
	if t.URL != "" {
		return admissionregistrationv1.WebhookClientConfig{URL: new(strings.TrimRight(t.URL, "/") + path)}
	}

	service := t.Service.DeepCopy()
	service.Path = &path

	return admissionregistrationv1.WebhookClientConfig{Service: service}
}

// selects returns a selector of objects with or without a label. The API server calls the webhook for an update if the
// old or the new object is selected: when an object loses the label too.
func selects(label string, operator metav1.LabelSelectorOperator) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: label, Operator: operator}}}
}

// rulesFor selects the objects of every resource of the ring that is served. The others follow when they appear: until
// their kinds are known nothing could be decided about them.
func rulesFor(
	set *resources.Set, operations ...admissionregistrationv1.OperationType,
) []admissionregistrationv1.RuleWithOperations {
	var out []admissionregistrationv1.RuleWithOperations

	for _, r := range slices.Concat(set.Main(), set.Controlled()) {
		out = append(out, rule(r, "", operations...))
	}

	return out
}

// Names of the match conditions. API servers show them in errors and metrics.
const (
	conditionRebalancer = "not-written-by-the-rebalancer"
	conditionController = "controlled-by-the-ring"
	conditionHandover   = "not-given-up"
	conditionLabels     = "labels-change"
	conditionSelected   = "selected-"
	conditionDryRun     = "dry-run"
	conditionRing       = "of-the-ring"
)

// matchConditions returns the CEL expressions that all must hold for the API server to call the webhook. They are
// evaluated within the API server, so an object that is none of our business costs no call.
func matchConditions(
	ring *v1alpha1.ClusterRing, set *resources.Set, rebalancer string,
) []admissionregistrationv1.MatchCondition {
	out := []admissionregistrationv1.MatchCondition{{Name: conditionRebalancer, Expression: notByRebalancer(rebalancer)}}

	if len(set.Controlled()) > 0 {
		out = append(out, admissionregistrationv1.MatchCondition{
			Name:       conditionController,
			Expression: controlledByRing(set),
		})
	}

	// Either all main resources of a ring control others, or none does.
	if main := set.Main(); len(main) > 0 && main[0].Controls {
		out = append(out, admissionregistrationv1.MatchCondition{
			Name:       conditionHandover,
			Expression: notGivenUp(ring.LabelKeys(), resourceIn(namesOf(main))),
		})
	}

	for i, expression := range selected(ring) {
		out = append(out, admissionregistrationv1.MatchCondition{Name: conditionSelected + strconv.Itoa(i),
			Expression: expression})
	}

	return out
}

// notByRebalancer holds for the writes of all others. The API server evaluates each condition, whatever the others say,
// so what costs much follows it in the same one.
func notByRebalancer(rebalancer string) string {
	return "request.userInfo.username != " + strconv.Quote(rebalancer)
}

// selected returns expressions that all hold for main objects that the ring selects, for all controlled objects, and
// for writes that take the shard label from an object: it must come back, also if the same write takes the object out
// of the selection. The object selector of the webhook could not except these. The policy ring-webhooks in
// deploy/base/guard admits exactly these expressions.
func selected(ring *v1alpha1.ClusterRing) []string {
	selector := ring.Spec.ObjectSelector
	if selector == nil {
		return nil
	}

	mains := make([]string, len(ring.Spec.Resources))
	for i, r := range ring.Spec.Resources {
		mains[i] = r.Group + "/" + r.Resource
	}

	others := fmt.Sprintf(" || !(%s) || request.operation == 'UPDATE' && %q in oldObject.metadata.?labels.orValue({})",
		resourceIn(mains), ring.LabelKeys().Shard)

	has := func(label string) string { return fmt.Sprintf("%q in object.metadata.?labels.orValue({})", label) }
	in := func(label string, values []string) string {
		return fmt.Sprintf("%s && object.metadata.labels[%q] in %s", has(label), label, list(values))
	}

	var all []string

	for _, label := range slices.Sorted(maps.Keys(selector.MatchLabels)) {
		all = append(all, "("+in(label, []string{selector.MatchLabels[label]})+")"+others)
	}

	for _, e := range selector.MatchExpressions {
		expression := has(e.Key)
		if e.Operator == metav1.LabelSelectorOpIn || e.Operator == metav1.LabelSelectorOpNotIn {
			expression = in(e.Key, e.Values)
		}

		expression = "(" + expression + ")"
		if e.Operator == metav1.LabelSelectorOpNotIn || e.Operator == metav1.LabelSelectorOpDoesNotExist {
			expression = "!" + expression
		}

		all = append(all, expression+others)
	}

	return all
}

// notGivenUp holds for all writes but that by which a shard gives up an object that others may follow: they go first,
// and the rebalancer assigns it. That is one call less in each such move.
func notGivenUp(keys contract.LabelKeys, owners string) string {
	return fmt.Sprintf("request.operation != 'UPDATE' || !(%s) || "+
		"!has(oldObject.metadata.labels) || !(%q in oldObject.metadata.labels)", owners, keys.Drain)
}

// labelsChange holds for updates that change the shard label of an object, and for those that keep it and change a
// label which is a key in the ring. The policy ring-webhooks in deploy/base/guard admits exactly this expression, after
// notByRebalancer.
//
// It does not hold if the update has the form in which a shard releases an object, or if the permission relabel was
// granted to its author. Tools for GitOps and backups usually have every permission there is. They do not know what
// they ask for, so that does not count.
func labelsChange(ring *v1alpha1.ClusterRing) string {
	keys, keyed := ring.LabelKeys(), "false"

	var all []string

	for _, r := range ring.Spec.Resources {
		if label := key.RuleOf(r.Key).Label; label != "" {
			all = append(all, labelOf("oldObject", label)+" != "+labelOf("object", label))
		}
	}

	if len(all) > 0 {
		keyed = "(" + strings.Join(all, " || ") + ")"
	}

	was, is, next := labelOf("oldObject", keys.Shard), labelOf("object", keys.Shard), labelOf("oldObject", keys.Drain)
	may := fmt.Sprintf("authorizer.group(\"sharding.timebertt.dev\").resource(\"clusterrings\").name(%q)", ring.Name)

	return fmt.Sprintf("%[1]s == %[2]s ? %[3]s : %[1]s.orValue(\"\") != \"\" && !(%[4]s.hasValue() && "+
		"(!%[2]s.hasValue() || %[4]s == %[2]s)) && "+
		"!(%[5]s.check(\"relabel\").allowed() && !%[5]s.check(\"*\").allowed())", was, is, keyed, next, may)
}

// labelOf returns a CEL expression for the value of a label, an optional one.
func labelOf(object, label string) string {
	return fmt.Sprintf("%s.metadata.?labels[?%q]", object, label)
}

// namesOf returns the names of resources, as group/resource.
func namesOf(all []resources.Resource) []string {
	names := make([]string, len(all))
	for i, r := range all {
		names[i] = r.GVR.Group + "/" + r.GVR.Resource
	}

	return names
}

// resourceIn returns a CEL expression that holds for requests to resources with these names.
func resourceIn(names []string) string {
	return "request.resource.group + '/' + request.resource.resource in " + list(names)
}

// list returns a list of strings in CEL.
func list(values []string) string {
	quoted := make([]string, len(values))
	for i, v := range values {
		quoted[i] = strconv.Quote(v)
	}

	return "[" + strings.Join(quoted, ", ") + "]"
}

// controlledByRing holds for main objects, and for controlled objects with a controller of a kind whose objects others
// may follow. It compares what [resources.Set.ControllerOf] compares: group and kind of the owner reference, not its
// version.
func controlledByRing(set *resources.Set) string {
	// The API version of an owner reference is "version" in the core group and "group/version" in all others.
	owners := make([]string, 0, len(set.Main()))
	for _, r := range slices.Concat(set.Main(), set.Controlled()) {
		if !r.Controls {
			continue
		}

		group := "!o.apiVersion.contains('/')"
		if r.Kind.Group != "" {
			group = fmt.Sprintf("o.apiVersion.startsWith(%q)", r.Kind.Group+"/")
		}

		owners = append(owners, fmt.Sprintf("o.kind == %q && %s", r.Kind.Kind, group))
	}

	if len(owners) == 0 {
		owners = []string{"false"} // no main resource is served: no object can be controlled by one
	}

	return fmt.Sprintf("!(%s) || "+
		"has(object.metadata.ownerReferences) && "+
		"object.metadata.ownerReferences.exists(o, has(o.controller) && o.controller && (%s))",
		resourceIn(namesOf(set.Controlled())), strings.Join(owners, " || "))
}

// Fence returns the binding that makes the API server apply the policy [contract.FencePolicyName] to the resources of a
// ring, including all fields that the API server would default. It returns nil if the ring's fence is off, or if none
// of its resources is served.
//
// What the fence allows is in the policy, which an administrator installs. The assigner writes only bindings, because
// no admission policy can restrict who writes which policy. RBAC restricts it to the bindings of certain rings, by
// their names.
func Fence(ring *v1alpha1.ClusterRing, set *resources.Set) *admissionregistrationv1.ValidatingAdmissionPolicyBinding {
	rules := fencedResources(set)
	if ring.Spec.FenceMode() == v1alpha1.FenceOff || len(rules) == 0 {
		return nil
	}

	actions := []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny}
	if ring.Spec.FenceMode() == v1alpha1.FenceAudit {
		actions = []admissionregistrationv1.ValidationAction{admissionregistrationv1.Warn, admissionregistrationv1.Audit}
	}

	return &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		TypeMeta: metav1.TypeMeta{APIVersion: admissionregistrationv1.SchemeGroupVersion.String(),
			Kind: "ValidatingAdmissionPolicyBinding"},
		ObjectMeta: metav1.ObjectMeta{
			Name:            contract.FenceName(ring.Name),
			Labels:          map[string]string{contract.LabelClusterRing: ring.Name},
			OwnerReferences: ownedBy(ring),
		},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: contract.FencePolicyName,
			ParamRef: &admissionregistrationv1.ParamRef{
				Name: contract.FenceName(ring.Name),
				// Users' writes must not depend on the lease monitor.
				ParameterNotFoundAction: ptr.To(admissionregistrationv1.AllowAction),
			},
			MatchResources: &admissionregistrationv1.MatchResources{
				NamespaceSelector: ring.Spec.EffectiveNamespaceSelector(),
				ObjectSelector:    &metav1.LabelSelector{},
				ResourceRules:     rules,
				MatchPolicy:       ptr.To(admissionregistrationv1.Equivalent),
			},
			ValidationActions: actions,
		},
	}
}

// fencedResources selects the objects of every served resource of the ring, and updates of their subresources. Others
// create a subresource to evict or bind a Pod, for example, which is no write to an object.
func fencedResources(set *resources.Set) []admissionregistrationv1.NamedRuleWithOperations {
	var out []admissionregistrationv1.NamedRuleWithOperations

	for _, r := range slices.Concat(set.Main(), set.Controlled()) {
		out = append(out,
			admissionregistrationv1.NamedRuleWithOperations{RuleWithOperations: rule(
				r, "", admissionregistrationv1.Create, admissionregistrationv1.Update, admissionregistrationv1.Delete)},
			admissionregistrationv1.NamedRuleWithOperations{RuleWithOperations: rule(r, "/*", admissionregistrationv1.Update)})
	}

	return out
}

// rule selects operations on objects of a resource; with the suffix /*, those on their subresources.
func rule(
	r resources.Resource, suffix string, operations ...admissionregistrationv1.OperationType,
) admissionregistrationv1.RuleWithOperations {
	return admissionregistrationv1.RuleWithOperations{Operations: operations, Rule: admissionregistrationv1.Rule{
		APIGroups: []string{r.GVR.Group}, APIVersions: []string{"*"}, Resources: []string{r.GVR.Resource + suffix},
		Scope: ptr.To(admissionregistrationv1.AllScopes),
	}}
}
