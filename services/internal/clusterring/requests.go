package clusterring

import (
	"context"
	"fmt"
	"slices"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/services/internal/resources"
)

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// Request returns the request for the ring of the given name, for controllers that work ring by ring.
func Request(ring string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: ring}}
}

// Requests returns requests for all rings that the reader has, a cache. It returns nil if the reader fails: the cache
// is being stopped then, and this process with it.
func Requests(ctx context.Context, rings client.Reader) []reconcile.Request {
	list := &v1alpha1.ClusterRingList{}
	if err := rings.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return nil
	}

	requests := make([]reconcile.Request, 0, len(list.Items))
	for i := range list.Items {
		requests = append(requests, Request(list.Items[i].Name))
	}

	return requests
}

// SpecChanged is a predicate for rings that leaves out changes of the status, most of which other services write.
var SpecChanged = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	return e.ObjectOld.GetGeneration() != e.ObjectNew.GetGeneration() || e.ObjectOld.GetUID() != e.ObjectNew.GetUID() ||
		e.ObjectOld.GetDeletionTimestamp().IsZero() != e.ObjectNew.GetDeletionTimestamp().IsZero() ||
		e.ObjectOld.GetAnnotations()[contract.AnnotationUnboundShards] !=
			e.ObjectNew.GetAnnotations()[contract.AnnotationUnboundShards]
}}

// ByLabel is a handler.MapFunc. It returns the request for the ring that the object's label names, whether the ring
// exists or not; nil if there is no label. An update is mapped by its old and its new object, so an object that leaves
// a ring for another concerns both.
func ByLabel(_ context.Context, obj client.Object) []reconcile.Request {
	if ring := obj.GetLabels()[contract.LabelClusterRing]; ring != "" {
		return []reconcile.Request{Request(ring)}
	}

	return nil
}

// Source returns a source of requests. The controller calls start once, when it begins, with functions that request one
// ring by its name, and all rings that the reader has, a cache; both may be called at any time. The controller works
// when start has returned, and fails with its error.
func Source(
	rings client.Reader, start func(ctx context.Context, one func(ring string), all func()) error,
) source.Source {
	return source.Func(func(ctx context.Context, q queue) error {
		return start(ctx, func(ring string) { q.Add(Request(ring)) }, func() {
			for _, request := range Requests(ctx, rings) {
				q.Add(request)
			}
		})
	})
}

// Namespaces answers which namespaces a ring covers, from their labels in the cache. If the cache does not contain a
// namespace yet, it reads the namespace live. It stores nothing.
type Namespaces struct {
	// Cached reads namespaces from a cache, and Live reads them from the API server. Both are required.
	Cached, Live client.Reader
}

// Selects reports whether the namespace exists and the selector selects it. It returns errors of the readers.
func (n Namespaces) Selects(ctx context.Context, name string, selector labels.Selector) (bool, error) {
	ns := &corev1.Namespace{}

	// No copy: this is called for every object of a pass.
	err := n.Cached.Get(ctx, client.ObjectKey{Name: name}, ns, client.UnsafeDisableDeepCopy)
	if apierrors.IsNotFound(err) {
		err = n.Live.Get(ctx, client.ObjectKey{Name: name}, ns)
	}

	if apierrors.IsNotFound(err) {
		return false, nil
	}

	if err != nil {
		return false, fmt.Errorf("read namespace %s: %w", name, err)
	}

	return selector.Matches(labels.Set(ns.Labels)), nil
}

// Covered reports for each namespace in the cache whether the selector selects it. It returns the reader's error.
func (n Namespaces) Covered(ctx context.Context, selector labels.Selector) (map[string]bool, error) {
	list := &corev1.NamespaceList{}
	if err := n.Cached.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list namespaces: %w", err)
	}

	covered := make(map[string]bool, len(list.Items))
	for i := range list.Items {
		covered[list.Items[i].Name] = selector.Matches(labels.Set(list.Items[i].Labels))
	}

	return covered, nil
}

// Mutating names the webhooks and policies that may change objects of the resources in updates, not more than a few. It
// returns "" if there are none, and if the reader, which may list few of them, fails. Selectors and conditions are not
// evaluated.
func Mutating(ctx context.Context, live client.Reader, set *resources.Set) string {
	var (
		webhooks admissionregistrationv1.MutatingWebhookConfigurationList
		policies admissionregistrationv1.MutatingAdmissionPolicyList
		names    []string
	)

	// Not every API server has policies, and an embedded sharder may read neither.
	for _, list := range []client.ObjectList{&webhooks, &policies} {
		_ = live.List(ctx, list)
	}

	for i := range webhooks.Items {
		if _, ours := webhooks.Items[i].Labels[contract.LabelClusterRing]; ours {
			continue
		}

		for _, w := range webhooks.Items[i].Webhooks {
			if slices.ContainsFunc(w.Rules, updates(set)) {
				names = append(names, "webhook "+w.Name+" of "+webhooks.Items[i].Name)
			}
		}
	}

	for i := range policies.Items {
		rules := ptr.Deref(policies.Items[i].Spec.MatchConstraints, admissionregistrationv1.MatchResources{}).ResourceRules
		if slices.ContainsFunc(rules, func(rule admissionregistrationv1.NamedRuleWithOperations) bool {
			return updates(set)(rule.RuleWithOperations)
		}) {
			names = append(names, "policy "+policies.Items[i].Name)
		}
	}

	if len(names) == 0 {
		return ""
	}

	return "; updates of resources of the ring may be changed by: " + membership.Few(names)
}

// updates returns a function that reports whether a rule matches updates of a resource of the ring.
func updates(set *resources.Set) func(admissionregistrationv1.RuleWithOperations) bool {
	all := slices.Concat(set.Main(), set.Controlled())

	return func(rule admissionregistrationv1.RuleWithOperations) bool {
		groups, names := sets.New(rule.APIGroups...), sets.New(rule.Resources...)

		return sets.New(rule.Operations...).HasAny(admissionregistrationv1.Update, admissionregistrationv1.OperationAll) &&
			slices.ContainsFunc(all, func(r resources.Resource) bool {
				return groups.HasAny(r.GVR.Group, "*") && names.HasAny(r.GVR.Resource, "*", "*/*")
			})
	}
}
