// Package registration tells the API server which writes to ask the assigner about: one MutatingWebhookConfiguration per
// ring.
//
// It reads ClusterRings, what their resources are, and the bundle of authorities; [Configuration] decides what to register;
// the [Reconciler], which only the leader runs, writes it and says in the ring's condition WebhookRegistered how that went.
//
// # Invariants
//
//  1. What is registered follows from the ring alone: a configuration that is edited or deleted is restored.
//  2. A ring that is gone, or going, has no configuration, and no configuration is left of rings that never came back.
//  3. The API server asks about no object that the answer could not change: none that has a shard, no controlled object
//     without a controller among the ring's main resources, none that the rebalancer writes.
package registration

import (
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/resources"
)

// annotationInjectCA asks cert-manager's CA injector to fill in the bundle, and names the Certificate to take it from.
const annotationInjectCA = "cert-manager.io/inject-ca-from"

// timeoutSeconds is how long a user's write waits for an assigner that does not answer.
const timeoutSeconds = 5

// Target is how API servers reach the assigner and know it. It is not changed once it is in use.
type Target struct {
	// URL is the base of the webhook's address, without a path. If it is empty, Service is used.
	URL string
	// Service is the Service in front of the assigner, without a path.
	Service admissionregistrationv1.ServiceReference
	// InjectCAFrom names cert-manager's Certificate, as namespace/name. If it is set, the bundle is left to cert-manager.
	InjectCAFrom string
	// RebalancerUsername is the user whose writes the API server does not ask about. It may be empty.
	RebalancerUsername string
}

// Configuration returns the webhook configuration of a ring, with everything that the API server would fill in. The bundle
// is left out; see [Target].InjectCAFrom.
func Configuration(ring *v1alpha1.ClusterRing, set *resources.Set, t Target) *admissionregistrationv1.MutatingWebhookConfiguration {
	c := &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{
			Name:   v1alpha1.WebhookConfigurationName(ring.Name),
			Labels: map[string]string{v1alpha1.LabelClusterRing: ring.Name},
			// The ring does not wait for its configuration: if the assigner is gone when the ring is deleted, the garbage
			// collector removes it.
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: v1alpha1.GroupVersion.String(),
				Kind:       "ClusterRing",
				Name:       ring.Name,
				UID:        ring.UID,
			}},
		},
		Webhooks: []admissionregistrationv1.MutatingWebhook{{
			Name:                    v1alpha1.WebhookName,
			ClientConfig:            t.clientConfig(ring.Name),
			Rules:                   rules(set),
			FailurePolicy:           ptr.To(admissionregistrationv1.Ignore),
			MatchPolicy:             ptr.To(admissionregistrationv1.Equivalent),
			NamespaceSelector:       ring.Spec.EffectiveNamespaceSelector(),
			ObjectSelector:          withoutShard(ring.Name),
			SideEffects:             ptr.To(admissionregistrationv1.SideEffectClassNone),
			TimeoutSeconds:          ptr.To[int32](timeoutSeconds),
			AdmissionReviewVersions: []string{"v1"},
			// A webhook that runs after ours may drop the label, or give the object its controller. The call is idempotent,
			// and is not repeated while the label is there.
			ReinvocationPolicy: ptr.To(admissionregistrationv1.IfNeededReinvocationPolicy),
			MatchConditions:    matchConditions(ring.Name, set, t.RebalancerUsername),
		}},
	}

	if t.InjectCAFrom != "" {
		c.Annotations = map[string]string{annotationInjectCA: t.InjectCAFrom}
	}

	return c
}

func (t Target) clientConfig(ring string) admissionregistrationv1.WebhookClientConfig {
	path := v1alpha1.WebhookPath(ring)
	if t.URL != "" {
		return admissionregistrationv1.WebhookClientConfig{URL: new(strings.TrimRight(t.URL, "/") + path)}
	}

	service := t.Service.DeepCopy()
	service.Path = &path

	return admissionregistrationv1.WebhookClientConfig{Service: service}
}

// withoutShard selects objects without a shard. The API server calls the webhook for an update if the old or the new
// object is selected: when an object loses the label too.
func withoutShard(ring string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
		Key:      v1alpha1.ShardLabel(ring),
		Operator: metav1.LabelSelectorOpDoesNotExist,
	}}}
}

// rules selects the objects, not the subresources, of every resource of the ring that is served. The others follow when
// they appear: until their kinds are known nothing could be decided about them.
func rules(set *resources.Set) []admissionregistrationv1.RuleWithOperations {
	var out []admissionregistrationv1.RuleWithOperations

	for _, r := range slices.Concat(set.Main(), set.Controlled()) {
		out = append(out, admissionregistrationv1.RuleWithOperations{
			Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create, admissionregistrationv1.Update},
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
