package policies_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

const (
	podName = "authentication.kubernetes.io/pod-name"
	podUID  = "authentication.kubernetes.io/pod-uid"
)

// policies is a control plane with the ring "guarded", whose shards may be in one namespace and whose resource is
// configmaps.
type policies struct {
	*localplane.Plane
	t *testing.T
	// shards is the namespace of the shards; a tenant may edit everything in tenant.
	shards, tenant string
	ring           *v1alpha1.ClusterRing
}

func newPolicies(t *testing.T) *policies {
	t.Helper()

	p := &policies{Plane: localplane.Shared(t), t: t}
	p.shards, p.tenant = p.Namespace(t), p.Namespace(t)

	for _, namespace := range []string{p.shards, p.tenant} {
		p.create(&rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "edit"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind,
				Name: "system:serviceaccounts:" + namespace}},
		})
	}

	p.ring = ringOf("guarded-"+p.shards, nil, v1alpha1.RingResource{Resource: "configmaps"})
	p.ring.Spec.ShardNamespaces = []string{p.shards}
	p.create(p.ring)
	p.t.Cleanup(func() { require.NoError(t, p.Client.Delete(context.WithoutCancel(t.Context()), p.ring)) })
	p.describe(map[string]string{"namespaces." + p.ring.Name: p.shards})

	return p
}

// describe tells the policies about rings, on behalf of the lease monitor.
func (p *policies) describe(data map[string]string) {
	p.t.Helper()
	p.parameter(contract.ShardsParameter, data)
}

// parameter writes one of the parameters that describe rings.
func (p *policies) parameter(name string, data map[string]string) {
	p.t.Helper()

	parameter := &v1alpha1.PolicyParameter{ObjectMeta: metav1.ObjectMeta{Name: name}}
	_, err := controllerutil.CreateOrUpdate(p.t.Context(), p.Client, parameter, func() error {
		parameter.Data = data
		return nil
	})
	require.NoError(p.t, err)
}

// movable lets the rebalancer patch resources.
func (p *policies) movable(group string, resources ...string) *rbacv1.ClusterRole {
	p.t.Helper()

	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "move-" + p.ring.Name,
			Labels: map[string]string{contract.LabelAggregateToRebalancer: "true"}},
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{group}, Resources: resources, Verbs: []string{"patch"}}},
	}
	p.create(role)
	require.NoError(p.t, p.Aggregate(p.t.Context()))

	return role
}

// labelling lets the rebalancer write a label besides what the role grants.
func (p *policies) labelling(role *rbacv1.ClusterRole, label string) {
	p.t.Helper()

	role.Rules = append(role.Rules, rbacv1.PolicyRule{
		APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{contract.ResourceShardLabels},
		ResourceNames: []string{label}, Verbs: []string{"write"},
	})
	require.NoError(p.t, p.Client.Update(p.t.Context(), role))
	require.NoError(p.t, p.Aggregate(p.t.Context()))
}

func (p *policies) create(o client.Object) {
	p.t.Helper()
	require.NoError(p.t, p.Client.Create(p.t.Context(), o))
}

// as returns a client of a service account. Unless pod is empty, its token is bound to that Pod.
func (p *policies) as(namespace, account, pod string) client.Client {
	p.t.Helper()

	config := rest.CopyConfig(p.Config)

	config.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:" + namespace + ":" + account,
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"},
	}
	if pod != "" {
		config.Impersonate.Extra = map[string][]string{podName: {pod}, podUID: {"uid-of-" + pod}}
	}

	c, err := client.New(config, client.Options{Scheme: p.Client.Scheme()})
	require.NoError(p.t, err)

	return c
}

func (p *policies) service(name string) client.Client {
	return p.as(contract.SystemNamespace, name, name+"-0")
}

// lease returns the Lease of a shard that is available.
func (p *policies) lease(namespace, name string, change ...func(*coordinationv1.Lease)) *coordinationv1.Lease {
	now := metav1.NewMicroTime(time.Unix(1_800_000_000, 0))
	l := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name,
			Labels: map[string]string{contract.LabelClusterRing: p.ring.Name}},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: new(name), LeaseDurationSeconds: ptr.To[int32](15), AcquireTime: &now, RenewTime: &now,
		},
	}

	for _, c := range change {
		c(l)
	}

	return l
}

// refused requires that the policy refuses a write, which is tried again until the API server knows policies and rings:
// it learns of both a little late.
func (p *policies) refused(write func() error, message string) {
	p.t.Helper()

	var err error

	require.Eventually(p.t, func() bool {
		err = write()
		return err != nil && strings.Contains(err.Error(), message)
	}, soon, tick, "%s: %v", message, errText{&err})
	require.True(p.t, apierrors.IsForbidden(err), err)
}

// errText shows an error as it is when it is printed.
type errText struct{ err *error }

func (e errText) String() string {
	if *e.err == nil {
		return "the write succeeded"
	}

	return (*e.err).Error()
}

func creating(t *testing.T, c client.Client, o client.Object) func() error {
	t.Helper()

	return func() error { return c.Create(t.Context(), o.DeepCopyObject().(client.Object), client.DryRunAll) }
}

// patching applies a JSON merge patch to an object or a subresource.
func patching(t *testing.T, c client.Client, o client.Object, patch string) func() error {
	t.Helper()

	return func() error {
		return c.Patch(t.Context(), o.DeepCopyObject().(client.Object), client.RawPatch(types.MergePatchType, []byte(patch)),
			client.DryRunAll)
	}
}

func TestOnlyPodsWithTheNameOfAShardWriteItsLease(t *testing.T) {
	p := newPolicies(t)
	tenant, pod := p.as(p.tenant, "default", "a"), p.as(p.shards, "default", "a")

	p.refused(creating(t, tenant, p.lease(p.tenant, "a")), "spec.shardNamespaces of the ring does not list it")
	p.refused(creating(t, pod, p.lease(p.shards, "b")),
		"only Pod b of namespace "+p.shards+" may write the Lease of shard b")
	p.refused(creating(t, p.as(p.shards, "default", ""), p.lease(p.shards, "a")),
		"this token is bound to no Pod of this namespace")

	own := p.lease(p.shards, "a")
	require.NoError(t, pod.Create(t.Context(), own))

	// Whether it takes the Lease or renews it.
	for patch, message := range map[string]string{
		`{"spec":{"holderIdentity":"b"}}`:                                     "the holder of a shard's Lease must be the shard itself",
		`{"spec":{"leaseDurationSeconds":301}}`:                               "needs spec.leaseDurationSeconds from 1 to 300",
		`{"spec":{"leaseDurationSeconds":null}}`:                              "needs spec.leaseDurationSeconds from 1 to 300",
		`{"spec":{"leaseTransitions":2000000000}}`:                            "must be from 0 to 2000000000",
		`{"metadata":{"finalizers":["x.io/y"]}}`:                              "must not have finalizers",
		`{"metadata":{"annotations":{"` + contract.AnnotationPod + `":"b"}}}`: "must name the Pod that writes it, which is a",
	} {
		p.refused(patching(t, pod, own, patch), message)
		p.refused(creating(t, pod, p.lease(p.shards, "a", func(l *coordinationv1.Lease) {
			require.NoError(t, json.Unmarshal([]byte(patch), l))
		})), message)
	}

	require.NoError(t, patching(t, pod, own, `{"spec":{"holderIdentity":"","leaseDurationSeconds":1}}`)())
	require.NoError(t, patching(t, pod, own, `{"metadata":{"annotations":{"`+contract.AnnotationHoldOff+`":"2s"}}}`)())

	require.NoError(t, patching(t, pod, own, `{"metadata":{"annotations":{"`+contract.AnnotationPod+`":"a"}}}`)())

	says := func(uid string) string {
		return `{"metadata":{"annotations":{"` + contract.AnnotationPodUID + `":"` + uid + `/2030"}}}`
	}
	require.NoError(t, patching(t, pod, own, says("uid-of-a"))())
	p.refused(patching(t, pod, own, says("another")),
		"must begin with the uid of the Pod that writes it, which is uid-of-a")

	// What a predecessor of the same name has said may stay: the lease monitor does not believe it with another renewTime.
	require.NoError(t, p.Client.Patch(t.Context(), own,
		client.RawPatch(types.MergePatchType, []byte(says("predecessor")))))
	require.NoError(t, patching(t, pod, own, `{"spec":{"renewTime":"2030-01-01T00:00:00.000000Z"}}`)())

	// Another Pod may neither renew nor release it, nor take it out of the ring.
	other := p.as(p.shards, "default", "b")
	for _, patch := range []string{
		`{"spec":{"renewTime":"2030-01-01T00:00:00.000000Z"}}`, `{"spec":{"holderIdentity":""}}`,
		`{"metadata":{"labels":null}}`,
	} {
		p.refused(patching(t, other, own, patch), "only Pod a of namespace")
	}

	// A Lease that is no shard's becomes none by a label.
	plain := p.lease(p.tenant, "c", func(l *coordinationv1.Lease) { l.Labels = nil })
	require.NoError(t, tenant.Create(t.Context(), plain))
	p.refused(patching(t, tenant, plain, `{"metadata":{"labels":{"`+contract.LabelClusterRing+`":"`+p.ring.Name+`"}}}`),
		"spec.shardNamespaces")

	// Who may update rings could change what the policy reads.
	require.NoError(t, creating(t, p.Client, p.lease(p.tenant, "a"))())

	// Shards without bound tokens need the word of the ring's administrator.
	p.describe(map[string]string{"namespaces." + p.ring.Name: p.shards, "unbound." + p.ring.Name: "true"})
	require.Eventually(t,
		func() bool { return creating(t, p.as(p.shards, "default", ""), p.lease(p.shards, "b"))() == nil }, soon, tick)
	p.refused(creating(t, tenant, p.lease(p.tenant, "a")), "spec.shardNamespaces of the ring does not list it")
}

// TestOnlyPodsOfTheRingHoldItsSlots shows who may write the Lease of a slot, which has the name of no Pod.
func TestOnlyPodsOfTheRingHoldItsSlots(t *testing.T) {
	p := newPolicies(t)
	slot := func(number, pod string) *coordinationv1.Lease {
		return p.lease(p.shards, p.ring.Name+"-"+number, func(l *coordinationv1.Lease) {
			l.Annotations = map[string]string{contract.AnnotationPod: pod}
		})
	}
	a, b := p.as(p.shards, "default", "a"), p.as(p.shards, "default", "b")

	p.refused(creating(t, a, slot("x", "a")), "only Pod "+p.ring.Name+"-x of namespace")
	p.refused(creating(t, a, slot("01", "a")), "only Pod")
	p.refused(creating(t, a, slot("10000", "a")), "only Pod")
	p.refused(creating(t, a, slot("0", "b")), "only Pod")
	p.refused(creating(t, a, p.lease(p.shards, p.ring.Name+"-0")), "only Pod")
	p.refused(creating(t, p.as(p.shards, "default", ""), slot("0", "a")), "this token is bound to no Pod")
	p.refused(creating(t, p.as(p.tenant, "default", "a"),
		p.lease(p.tenant, p.ring.Name+"-0", func(l *coordinationv1.Lease) {
			l.Annotations = map[string]string{contract.AnnotationPod: "a"}
		})), "spec.shardNamespaces of the ring does not list it")

	held := slot("0", "a")
	require.NoError(t, a.Create(t.Context(), held))
	require.NoError(t, patching(t, a, held, `{"spec":{"holderIdentity":""}}`)())

	// Another Pod takes it by writing its own name, and cannot write it otherwise.
	takes := `{"metadata":{"annotations":{"` + contract.AnnotationPod + `":"b"}}}`
	require.NoError(t, patching(t, b, held, takes)())
	p.refused(patching(t, b, held, `{"spec":{"renewTime":"2030-01-01T00:00:00.000000Z"}}`), "only Pod")
	p.refused(patching(t, b, held, `{"spec":{"holderIdentity":""}}`), "only Pod")
	p.refused(patching(t, b, held, `{"metadata":{"labels":null}}`), "only Pod")

	// The Pod of a StatefulSet may have the name of a slot. Its Lease cannot be taken.
	stateful := p.lease(p.shards, p.ring.Name+"-1")
	require.NoError(t, p.as(p.shards, "default", stateful.Name).Create(t.Context(), stateful))
	p.refused(patching(t, b, stateful, takes), "only Pod")

	// A ring with a fence says who its shards are.
	p.describe(map[string]string{
		"namespaces." + p.ring.Name: p.shards, "accounts." + p.ring.Name: "system:serviceaccount:" + p.shards +
			":controller\nother",
	})
	p.refused(patching(t, b, held, takes), "may not hold the slot "+p.ring.Name+"-0: spec.fence.serviceAccounts")
	require.NoError(t, patching(t, p.as(p.shards, "controller", "b"), held, takes)())
}

func TestAssignerRegistersOnlyWebhooksOfRings(t *testing.T) {
	p := newPolicies(t)
	assigner := p.service("assigner")

	p.describe(map[string]string{"namespaces." + p.ring.Name: p.shards, "namespaces.untold": ""})
	p.registrable(assigner)

	for message, change := range map[string]func(configuration){
		"not the webhook configuration of a ring": func(c configuration) { c.Name = "other" },
		"needs the label":                         func(c configuration) { c.Labels = nil },
		"failurePolicy Ignore": func(c configuration) {
			c.Webhooks[0].FailurePolicy = ptr.To(admissionregistrationv1.Fail)
		},
		"timeout of at most 5 seconds": func(c configuration) { c.Webhooks[0].TimeoutSeconds = ptr.To[int32](30) },
		"needs the name":               func(c configuration) { c.Webhooks[0].Name = "other.example.com" },
		"must call Service assigner": func(c configuration) {
			c.Webhooks[0].ClientConfig.Service.Name = "other"
		},
		"or a URL": func(c configuration) {
			c.Webhooks[0].ClientConfig = admissionregistrationv1.WebhookClientConfig{URL: new("https://example.com/")}
		},
		"only objects without a shard": func(c configuration) { c.Webhooks[0].ObjectSelector = nil },
		"must name the resources":      func(c configuration) { c.Webhooks[0].Rules[0].Resources = []string{"*"} },
		"called only when objects are created": func(c configuration) {
			c.Webhooks[0].Rules[0].Operations = []admissionregistrationv1.OperationType{"DELETE"}
		},
		"the only owner": func(c configuration) { c.OwnerReferences[0].Name = "other" },
		"a ring cannot shard these resources": func(c configuration) {
			c.Webhooks[0].Rules[0].APIGroups = []string{"rbac.authorization.k8s.io"}
			c.Webhooks[0].Rules[0].Resources = []string{"roles"}
		},
	} {
		// The parameter lists this ring, but it does not exist, so only one of the policies refuses it.
		ofNoRing := func(c configuration) {
			c.Labels[contract.LabelClusterRing], c.OwnerReferences[0].Name = "untold", "untold"
		}
		p.refused(creating(t, assigner, p.configuration(ofNoRing, change)), message)
	}

	p.refused(creating(t, assigner,
		p.configuration(func(c configuration) { c.Webhooks[0].Rules[0].Resources = []string{"pods"} })),
		"must only be called for resources that the ring names")

	// The webhook that finds out whether calls arrive fails closed, and is called for another resource.
	reach := func(expression, resource string) configuration {
		return p.configuration(func(c configuration) {
			w := &c.Webhooks[0]
			w.Name, w.ObjectSelector, w.FailurePolicy = contract.ReachWebhookName, nil, ptr.To(admissionregistrationv1.Fail)
			w.Rules[0].Operations = []admissionregistrationv1.OperationType{admissionregistrationv1.Update}
			w.Rules[0].APIGroups, w.Rules[0].Resources = []string{v1alpha1.GroupVersion.Group}, []string{resource}
			w.MatchConditions = []admissionregistrationv1.MatchCondition{{Name: "dry-run", Expression: expression}}
			c.Name += "-reach"
		})
	}

	const dry = "has(request.dryRun) && request.dryRun"

	require.NoError(t, creating(t, assigner, reach(dry, "clusterrings/status"))())
	p.refused(creating(t, assigner, reach("true", "clusterrings/status")), "failurePolicy Ignore")
	p.refused(creating(t, assigner, reach(dry, "clusterrings")), "failurePolicy Ignore")

	foreign := p.configuration(func(c configuration) { c.Name, c.Labels = "foreign-"+p.shards, nil })
	p.create(foreign)
	t.Cleanup(func() { require.NoError(t, p.Client.Delete(context.WithoutCancel(t.Context()), foreign)) })
	p.refused(func() error { return assigner.Delete(t.Context(), foreign, client.DryRunAll) },
		"not the webhook configuration of a ring")
}

func TestLeaseMonitorWritesOnlyLeasesOfShards(t *testing.T) {
	p := newPolicies(t)
	monitor := p.service("leasemonitor")

	node := p.lease(p.tenant, "node", func(l *coordinationv1.Lease) { l.Labels = nil })
	p.create(node)
	p.refused(patching(t, monitor, node, `{"spec":{"holderIdentity":"shardlease-controller"}}`),
		"not the Lease of a shard")
	p.refused(func() error { return monitor.Delete(t.Context(), node, client.DryRunAll) }, "not the Lease of a shard")
	p.refused(patching(t, monitor, node, `{"metadata":{"labels":{"`+contract.LabelClusterRing+`":"x"}}}`),
		"not the Lease of a shard")

	held := p.lease(p.shards, "held")
	p.create(held)
	p.refused(func() error { return monitor.Delete(t.Context(), held, client.DryRunAll) }, "a shard holds this Lease")
	p.refused(patching(t, monitor, held, `{"spec":{"holderIdentity":"other"}}`),
		"only for the holder shardlease-controller")
	p.refused(patching(t, monitor, held, `{"spec":{"renewTime":"2030-01-01T00:00:00.000000Z"}}`),
		"only for the holder shardlease-controller")
	p.refused(patching(t, monitor, held, `{"metadata":{"labels":{"`+contract.LabelClusterRing+`":"x"}}}`),
		"changes only the label")
	p.refused(patching(t, monitor, held, `{"metadata":{"labels":null}}`), "changes only the label")
	require.NoError(t, patching(t, monitor, held, `{"metadata":{"labels":{"`+contract.LabelState+`":"ready"}}}`)())
	require.NoError(t, patching(t, monitor, held,
		`{"spec":{"holderIdentity":"shardlease-controller","leaseDurationSeconds":30}}`)())

	// Everyone who may create Leases may write this one, as long as there is no ring of that name.
	foreign := p.lease(p.tenant, "foreign", func(l *coordinationv1.Lease) {
		l.Labels[contract.LabelClusterRing], l.Spec.HolderIdentity = "no-such-ring", new("somebody")
	})
	p.create(foreign)
	require.NoError(t, monitor.Delete(t.Context(), foreign, client.DryRunAll), "no shard holds it")

	released := p.lease(p.shards, "released", func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = new("") })
	p.create(released)
	require.NoError(t, monitor.Delete(t.Context(), released, client.DryRunAll))
}

func TestRebalancerWritesOnlyItsLabels(t *testing.T) {
	p := newPolicies(t)
	p.movable("", "configmaps", "services")

	rebalancer := p.service("rebalancer")
	object := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.tenant, Name: "object", Labels: map[string]string{"app": "a"}, Annotations: map[string]string{"a": "b"},
			Finalizers: []string{"example.com/keep"},
		},
		Data: map[string]string{"k": "v"},
	}
	p.create(object)
	t.Cleanup(func() {
		none := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
		require.NoError(t, p.Client.Patch(context.WithoutCancel(t.Context()), object, none))
	})

	for patch, message := range map[string]string{
		`{"data":{"k":"w"}}`:                                        "may not change data;",
		`{"data":null}`:                                             "may not change data;",
		`{"immutable":true}`:                                        "may not change immutable;",
		`{"metadata":{"labels":{"app":"b"}}}`:                       "may not change label app;",
		`{"metadata":{"labels":{"app":null,"other":"x"}}}`:          "may not change label other, label app;",
		`{"metadata":{"annotations":{"a":null}}}`:                   "may not change annotation a;",
		`{"metadata":{"finalizers":null}}`:                          "may not change finalizer example.com/keep;",
		`{"metadata":{"finalizers":["example.com/keep","b.io/c"]}}`: "may not change finalizer b.io/c;",
		`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"p","uid":"u"}]}}`: "may not change metadata.ownerReferences;",
	} {
		p.refused(patching(t, rebalancer, object, patch), message)
	}

	own := `{"metadata":{"labels":{"` + contract.ShardLabel(p.ring.Name) + `":"a","` + contract.DrainLabel(p.ring.Name) + `":"true"},` +
		`"annotations":{"` + contract.HandoverAnnotation(p.ring.Name) + `":"{}"}}}`
	require.NoError(t, rebalancer.Patch(t.Context(), object.DeepCopy(),
		client.RawPatch(types.MergePatchType, []byte(own))))
	require.NoError(t, patching(t, rebalancer, object,
		`{"metadata":{"labels":{"`+contract.ShardLabel(p.ring.Name)+`":null},"annotations":{"`+contract.HandoverAnnotation(p.ring.Name)+`":null}}}`)())

	// Built-in kinds have fields with defaults, which are no changes.
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: p.tenant, Name: "object"},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
	p.create(service)
	require.NoError(t, patching(t, rebalancer, service, own)())
	p.refused(patching(t, rebalancer, service, `{"spec":{"sessionAffinity":"ClientIP"}}`), "may not change spec;")

	p.refused(patching(t, rebalancer, p.ring, `{"spec":{"resources":[{"group":"","resource":"pods"}]}}`), "may not change")
	p.refused(patching(t, rebalancer, p.ring,
		`{"metadata":{"annotations":{"`+contract.AnnotationUnboundShards+`":"true"}}}`), "may not change annotation")
	p.refused(patching(t, rebalancer, p.ring, own), "may not change label")
	require.NoError(t, patching(t, rebalancer, p.ring,
		`{"metadata":{"finalizers":["`+contract.FinalizerRebalancer+`"]}}`)())
}

func TestServicesCreateOnlyCertificatesAndTheirLeaderLeases(t *testing.T) {
	p := newPolicies(t)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: contract.SystemNamespace, Name: "x"}}

	for _, name := range []string{"assigner", "ringquery"} {
		c := p.service(name)
		token := secret.DeepCopy()
		token.Type = corev1.SecretTypeServiceAccountToken
		token.Annotations = map[string]string{corev1.ServiceAccountNameKey: "rebalancer"}
		p.refused(creating(t, c, token), "must have the type kubernetes.io/tls")

		pair := secret.DeepCopy()
		pair.Type, pair.Data = corev1.SecretTypeTLS, map[string][]byte{"tls.crt": {}, "tls.key": {},
			"ca.crt": {}, "ca.key": {}}
		require.NoError(t, creating(t, c, pair)())

		pair.Data["more"] = []byte("x")
		p.refused(creating(t, c, pair), "writes only certificates and their keys")
	}

	bundle := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: contract.SystemNamespace, Name: "x"},
		Data: map[string]string{"config": "x"}}
	p.refused(creating(t, p.service("ringquery"), bundle), "writes only certificates and their keys")

	for _, name := range []string{"assigner", "leasemonitor", "rebalancer"} {
		c := p.service(name)
		leader := p.lease(contract.SystemNamespace, name, func(l *coordinationv1.Lease) { l.Labels = nil })
		require.NoError(t, creating(t, c, leader)())
		p.refused(creating(t, c, p.lease(contract.SystemNamespace, "other",
			func(l *coordinationv1.Lease) { l.Labels = nil })), "its own leader election")

		heartbeat := creating(t, c, p.lease(contract.SystemNamespace, "leasemonitor-heartbeat",
			func(l *coordinationv1.Lease) { l.Labels = nil }))
		if name == "leasemonitor" {
			require.NoError(t, heartbeat())
		} else {
			p.refused(heartbeat, "its own leader election")
		}

		// A service cannot become a shard, not even of a ring that does not exist yet.
		ofNoRing := func(l *coordinationv1.Lease) { l.Labels[contract.LabelClusterRing] = "none" }
		p.refused(creating(t, c, p.lease(contract.SystemNamespace, name, ofNoRing)), "must not be the Lease of a shard")
		p.refused(creating(t, c, p.lease(contract.SystemNamespace, name+"-0", ofNoRing)), "its own leader election")
	}
}
