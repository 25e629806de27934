// Package registration keeps the API server calling the assigner for the right writes, and refusing the wrong ones: it maintains one
// MutatingWebhookConfiguration per ring, and one ValidatingAdmissionPolicyBinding per ring with a fence.
//
// It reads ClusterRings, their resources, and the CA bundle. [Configuration] and [Fence] decide what to register. The [Reconciler], which
// runs only in the leader, writes it and reports the result in the ring's conditions WebhookRegistered and Fenced.
//
// # Invariants
//
//  1. The registration depends only on the ring, except for a secret at the end of the webhook's path: a configuration that is edited or deleted is
//     restored.
//  2. A ring that is gone, or being deleted, has no configuration. No configuration remains of rings that were never recreated.
//  3. The API server does not call the assigner if the answer could not change anything: for objects with a shard, unless that label
//     changes, or the one that is their key; for main objects that the ring does not select; for controlled objects without a controller among the
//     ring's main resources; and for writes of the rebalancer.
//  4. A fence lasts as long as its ring: until the last label is gone, it protects objects that still carry one.
package registration

import (
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/resources"
)

// annotationInjectCA asks cert-manager's CA injector to fill in the bundle, and names the Certificate to take it from.
const annotationInjectCA = "cert-manager.io/inject-ca-from"

// labelApp is the recommended label of Kubernetes for the name of an application.
const labelApp = "app.kubernetes.io/name"

// labelNoEnforcer asks the admissions enforcer of Azure's Kubernetes service (AKS) to leave a webhook configuration as it is. The ring decides which
// namespaces it covers.
const labelNoEnforcer = "admissions.enforcer/disabled"

// Target describes how API servers reach and verify the assigner. It does not change while it is in use.
type Target struct {
	// URL is the base of the webhook's address, without a path. If it is empty, Service is used.
	URL string
	// Service is the Service in front of the assigner, without a path.
	Service admissionregistrationv1.ServiceReference
	// InjectCAFrom identifies cert-manager's Certificate, as namespace/name. If it is set, cert-manager fills in the bundle.
	InjectCAFrom string
	// RebalancerUsername is the user for whose writes the API server does not call the assigner.
	RebalancerUsername string
	// TimeoutSeconds is how long a user's write waits for an assigner that does not answer: 1 to 30.
	TimeoutSeconds int32
	// Port is the port that the assigner's Pods listen on. Messages name it.
	Port string
}

// Configuration returns the webhook configuration of a ring, including all fields that the API server would default. Its path ends with the secret.
// It does not contain the bundle; see [Target].InjectCAFrom.
func Configuration(ring *v1alpha1.ClusterRing, set *resources.Set, t Target, secret string) *admissionregistrationv1.MutatingWebhookConfiguration {
	c := &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{
			Name:            contract.WebhookConfigurationName(ring.Name),
			Labels:          map[string]string{contract.LabelClusterRing: ring.Name, labelApp: v1alpha1.AppControllerSharding, labelNoEnforcer: "true"},
			OwnerReferences: ownedBy(ring),
		},
		// The first one must not see what the second one adds: a shard releases an object, and the assigner assigns it in the same write.
		Webhooks: []admissionregistrationv1.MutatingWebhook{
			onLabelChange(ring, set, t, secret), onMissingLabel(ring, set, t, secret), onDryRun(ring, t, secret),
		},
	}

	if t.InjectCAFrom != "" {
		c.Annotations = map[string]string{annotationInjectCA: t.InjectCAFrom}
	}

	return c
}

// webhook returns what the webhooks for a ring's objects have in common.
func webhook(ring *v1alpha1.ClusterRing, t Target, secret string) admissionregistrationv1.MutatingWebhook {
	return admissionregistrationv1.MutatingWebhook{
		ClientConfig:            t.clientConfig(ring.Name, secret),
		FailurePolicy:           ptr.To(admissionregistrationv1.Ignore),
		MatchPolicy:             ptr.To(admissionregistrationv1.Equivalent),
		NamespaceSelector:       ring.Spec.EffectiveNamespaceSelector(),
		SideEffects:             ptr.To(admissionregistrationv1.SideEffectClassNone),
		TimeoutSeconds:          new(t.TimeoutSeconds),
		AdmissionReviewVersions: []string{"v1"},
		// A webhook that runs after ours may change or drop labels, or give the object its controller. The call is idempotent, and is not
		// repeated while the labels are as they should be.
		ReinvocationPolicy: ptr.To(admissionregistrationv1.IfNeededReinvocationPolicy),
	}
}

// onMissingLabel returns the webhook for objects without a shard.
func onMissingLabel(ring *v1alpha1.ClusterRing, set *resources.Set, t Target, secret string) admissionregistrationv1.MutatingWebhook {
	w := webhook(ring, t, secret)
	w.Name, w.Rules = contract.WebhookName, rulesFor(set, admissionregistrationv1.Create, admissionregistrationv1.Update)
	w.ObjectSelector = selects(ring.LabelKeys().Shard, metav1.LabelSelectorOpDoesNotExist)
	w.MatchConditions = matchConditions(ring, set, t.RebalancerUsername)

	return w
}

// onLabelChange returns the webhook for updates of objects with a shard that change the label, which the assigner puts back in the same write, or the
// label that is the key of the object, for which the assigner asks the shard to release the object. It goes to the same place as the other.
//
// It covers the updates of subresources, some of which can change labels. A scale has no labels, so the selector excludes it.
func onLabelChange(ring *v1alpha1.ClusterRing, set *resources.Set, t Target, secret string) admissionregistrationv1.MutatingWebhook {
	w := webhook(ring, t, secret)
	w.Name, w.Rules = contract.LabelsWebhookName, rulesFor(set, admissionregistrationv1.Update)
	w.ObjectSelector = selects(ring.LabelKeys().Shard, metav1.LabelSelectorOpExists)
	w.SideEffects = ptr.To(admissionregistrationv1.SideEffectClassNoneOnDryRun) // the assigner tells people who keeps changing labels
	w.MatchConditions = []admissionregistrationv1.MatchCondition{
		{Name: conditionLabels, Expression: notByRebalancer(t.RebalancerUsername) + " && (" + labelsChange(ring) + ")"},
	}

	for i := range w.Rules {
		w.Rules[i].Resources = append(w.Rules[i].Resources, w.Rules[i].Resources[0]+"/*")
	}

	return w
}

// ownedBy makes the garbage collector remove what the assigner has registered for a ring. The ring does not wait for it: the assigner may be
// gone when the ring is deleted.
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

// selects returns a selector of objects with or without a label. The API server calls the webhook for an update if the old or the new
// object is selected: when an object loses the label too.
func selects(label string, operator metav1.LabelSelectorOperator) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: label, Operator: operator}}}
}

// rulesFor selects the objects of every resource of the ring that is served. The others follow when they appear: until their kinds are known
// nothing could be decided about them.
func rulesFor(set *resources.Set, operations ...admissionregistrationv1.OperationType) []admissionregistrationv1.RuleWithOperations {
	var out []admissionregistrationv1.RuleWithOperations

	for _, r := range slices.Concat(set.Main(), set.Controlled()) {
		out = append(out, admissionregistrationv1.RuleWithOperations{
			Operations: operations,
			Rule: admissionregistrationv1.Rule{
				APIGroups:   []string{r.GVR.Group},
				APIVersions: []string{"*"},
				Resources:   []string{r.GVR.Resource},
				Scope:       ptr.To(admissionregistrationv1.AllScopes),
			},
		})
	}

	return out
}
