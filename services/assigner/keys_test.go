package assigner_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/hashring"
	"github.com/clusterring/clusterring/services/internal/key"
	"github.com/clusterring/clusterring/tools/testkit/leasetest"
)

// account is the service account of the shards of a fixture, and of others who write.
const account = "controller"

// writers lets the service accounts of the namespace create children in the namespace of the fixture.
func (f *fixture) writers(namespace string) {
	f.t.Helper()
	require.NoError(f.t, f.Client.Create(f.t.Context(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: account}}))
	require.NoError(f.t, f.Client.Create(f.t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: "writers-of-" + namespace},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "system:serviceaccounts:" +
			namespace}},
	}))
}

// pod returns a client with a token as the kubelet gives it to the Pod; one that is bound to no Pod if the name is
// empty.
func (f *fixture) pod(namespace, name string) client.Client {
	f.t.Helper()

	path, err := f.ServiceAccountKubeconfig(f.t.Context(), namespace, account)
	if name != "" {
		path, err = f.PodKubeconfig(f.t.Context(), namespace, account, name)
	}

	require.NoError(f.t, err)

	config, err := clientcmd.BuildConfigFromFlags("", path)
	require.NoError(f.t, err)

	config.QPS = -1

	return f.clientWith(func(c *rest.Config) { *c = *config })
}

// childBy returns the shard of a new child that the client creates; empty for none. What follows a child is a Secret.
func (f *fixture) childBy(c client.Client, owner *unstructured.Unstructured) string {
	f.t.Helper()

	u := f.child(unique("child"), owner)
	if owner.GetKind() == u.GetKind() {
		u.SetKind("Secret")
	}

	require.NoError(f.t, c.Create(f.t.Context(), u))

	return u.GetLabels()[f.shardLabel()]
}

// A child that a shard creates gets that shard: while objects move, before anything else is known, and after the ring
// has converged, whatever the key of the owner says. Nobody reads what it follows: the assigner has no right to do that
// here. Children of other writers wait while objects move.
func TestChildrenOfShards(t *testing.T) {
	f := newFixtureOf(t, "by-shard", []v1alpha1.ControlledResource{{Resource: "configmaps"}, {Resource: "secrets"}}, "a",
		"b", "c")
	tenant := f.Namespace(t)
	f.writers(f.namespace)
	f.writers(tenant)
	f.changeRing(func(r *v1alpha1.ClusterRing) { r.Spec.ShardNamespaces = []string{f.namespace} })

	slot := f.shard("slot-0")
	require.NoError(t, slot.Acquire(t.Context()))

	lease, err := slot.Lease(t.Context())
	require.NoError(t, err)
	metav1.SetMetaDataAnnotation(&lease.ObjectMeta, contract.AnnotationPod, "runs-slot-0")
	require.NoError(t, f.Client.Update(t.Context(), lease))

	namesake := &leasetest.Shard{Client: f.Client, Ring: f.name, Namespace: tenant, Name: "a"}
	require.NoError(t, namesake.Acquire(t.Context()))

	start(t, f.Plane)
	f.registered()
	require.Empty(t, f.ring().Status.Assignment.Fingerprint)

	owner := f.create(f.website("blog"))
	between := f.create(f.child("between", owner))
	pods := map[string]client.Client{
		"a": f.pod(f.namespace, "a"), "b": f.pod(f.namespace, "b"), "c": f.pod(f.namespace, "c"),
		"slot-0": f.pod(f.namespace, "runs-slot-0"),
	}

	byShards := func(when string) {
		t.Helper()

		before := count(t, f.name, "by_shard")

		for want, c := range pods {
			require.Equal(t, want, f.childBy(c, owner), when)
			require.Equal(t, want, f.childBy(c, between), when)
		}

		require.Equal(t, before+8, count(t, f.name, "by_shard"), when)
		require.Zero(t, count(t, f.name, "owner_unread"), when)
	}
	byShards("while objects move")

	for what, c := range map[string]client.Client{
		"a Pod that holds no Lease":                           f.pod(f.namespace, "stranger"),
		"a Pod with the name of a slot":                       f.pod(f.namespace, "slot-0"),
		"a token that is bound to no Pod":                     f.pod(f.namespace, ""),
		"a Pod with the name of a shard in another namespace": f.pod(tenant, "a"),
		"another Pod there":                                   f.pod(tenant, "b"),
		"a person":                                            f.Client,
	} {
		require.Empty(t, f.childBy(c, owner), what)
	}

	require.Equal(t, 7, count(t, f.name, "moving"), "the one between is of a person, too")

	f.settle("a", "b", "c", "slot-0")
	eventually(t, func() bool { return f.childBy(f.Client, owner) != "" }, "children of others need not wait any more")
	byShards("after the ring has converged")

	require.NoError(t, f.shard("a").Release(t.Context()))
	eventually(t, func() bool { return f.childBy(pods["a"], owner) == "" },
		"a shard that has released its Lease gets nothing")
}

const tenant = "example.org/tenant"

// tenantOf returns a tenant that belongs to the shard.
func (f *fixture) tenantOf(shard string) string {
	f.t.Helper()

	for i := range 1000 {
		name := fmt.Sprint("tenant-", i)
		if owner, _ := hashring.New(f.shards).Owner(key.OfLabel(tenant, name).Hash()); owner == shard {
			return name
		}
	}

	f.t.Fatalf("shard %s owns no tenant", shard)

	return ""
}

// of returns the object with the tenant.
func of(u *unstructured.Unstructured, name string) *unstructured.Unstructured {
	u.SetLabels(map[string]string{tenant: name})

	return u
}

// secret returns a secret of the fixture.
func (f *fixture) secret(name string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: "Secret"})
	u.SetNamespace(f.namespace)
	u.SetName(name)

	return u
}

// rekey gives the ring's websites and secrets a key, and waits until the webhook has it.
func (f *fixture) rekey(k v1alpha1.ObjectKey) {
	f.t.Helper()

	all := []v1alpha1.RingResource{
		{Group: f.kind.Group, Resource: "websites",
			ControlledResources: []v1alpha1.ControlledResource{{Resource: "configmaps"}}, Key: &k},
		{Resource: "secrets", Key: &k},
	}

	f.changeRing(func(r *v1alpha1.ClusterRing) { r.Spec.Resources = all })
	f.record(all...)
	f.settle(f.shards...)
}

// Objects of two kinds go to one shard if they have the same label, or are in one namespace.
func TestObjectsOfOneKeyGoToOneShard(t *testing.T) {
	f := running(t, "one-key", "a", "b", "c")

	c, warned := f.warned()

	f.rekey(v1alpha1.ObjectKey{Type: v1alpha1.KeyNamespace})
	inNamespace, _ := hashring.New(f.shards).Owner(key.OfNamespace(f.namespace).Hash())
	eventually(t, func() bool {
		return f.create(f.secret(unique("namespaced"))).GetLabels()[f.shardLabel()] == inNamespace
	}, "secrets go by their namespace")

	for range 5 {
		require.Equal(t, inNamespace, f.create(f.website(unique("namespaced"))).GetLabels()[f.shardLabel()])
		require.Equal(t, inNamespace, f.create(f.secret(unique("namespaced"))).GetLabels()[f.shardLabel()])
	}

	generated := f.secret("")
	generated.SetGenerateName("namespaced-")
	require.Equal(t, inNamespace, f.create(generated).GetLabels()[f.shardLabel()], "the name does not matter")

	f.rekey(v1alpha1.ObjectKey{Type: v1alpha1.KeyLabel, Label: tenant})
	acme := f.tenantOf("b")
	eventually(t, func() bool {
		return f.create(of(f.secret(unique("labelled")), acme)).GetLabels()[f.shardLabel()] == "b"
	}, "secrets go by their label")

	for range 5 {
		require.Equal(t, "b", f.create(of(f.website(unique("labelled")), acme)).GetLabels()[f.shardLabel()])
		require.Equal(t, "b", f.create(of(f.secret(unique("labelled")), acme)).GetLabels()[f.shardLabel()])
	}

	bare := f.website("bare")
	require.NoError(t, c.Create(t.Context(), bare))
	require.Equal(t, f.owner("bare"), bare.GetLabels()[f.shardLabel()])
	require.Contains(t, warned.take(), "the label example.org/tenant, which the object lacks")
}

// A change of the label asks the shard for the object in the same write. No other update calls the assigner.
func TestChangeOfTheLabel(t *testing.T) {
	f := running(t, "label-change", "a", "b", "c")
	f.rekey(v1alpha1.ObjectKey{Type: v1alpha1.KeyLabel, Label: tenant})

	atB, atC, drain := f.tenantOf("b"), f.tenantOf("c"), contract.DrainLabel(f.name)
	eventually(t, func() bool {
		o := f.create(of(f.secret(unique("probe")), atB))
		relabel(t, f.Client, o, atC)

		return o.GetLabels()[drain] != ""
	}, "the API server calls the webhook")

	site := f.create(of(f.website("site"), atB))
	require.Equal(t, "b", site.GetLabels()[f.shardLabel()])

	before, rekeyed := count(t, f.name, ""), count(t, f.name, "rekeyed")
	require.NoError(t, f.Client.Patch(t.Context(), site,
		client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"other":"x"}},"spec":{"a":"b"}}`))))
	require.Equal(t, before, count(t, f.name, ""), "another change is none of its business")

	relabel(t, f.Client, site, atC)
	require.Equal(t, "true", site.GetLabels()[drain], "what follows it goes first")
	require.Equal(t, "b", site.GetLabels()[f.shardLabel()], "until its shard has released it")

	require.Greater(t, count(t, f.name, "rekeyed"), rekeyed)
}

// relabel changes the tenant of an object.
func relabel(t *testing.T, c client.Client, obj client.Object, name string) {
	t.Helper()

	body := fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, tenant, name)
	require.NoError(t, c.Patch(t.Context(), obj, client.RawPatch("application/merge-patch+json", []byte(body))))
}

// keyedAt makes the tenant the key of websites, and returns a website that is at the shard because of its tenant.
func (f *fixture) keyedAt(shard string) (owner *unstructured.Unstructured) {
	f.t.Helper()
	f.rekey(v1alpha1.ObjectKey{Type: v1alpha1.KeyLabel, Label: tenant})
	eventually(f.t, func() bool {
		owner = f.create(of(f.website(unique("owner")), f.tenantOf(shard)))
		return owner.GetLabels()[f.shardLabel()] == shard
	}, "websites go by their label")

	return owner
}

// A child goes to the shard of its owner if the owner is at the shard of its key. Otherwise, it waits for the
// rebalancer.
func TestChildrenOfKeyedOwners(t *testing.T) {
	f := newFixture(t, "keyed-children", "a", "b", "c")
	f.mayRead("websites")
	start(t, f.Plane)
	f.registered()
	owner := f.keyedAt("b")
	eventually(t, func() bool { return f.create(f.child(unique("child"), owner)).GetLabels()[f.shardLabel()] == "b" },
		"children go with them")

	eventually(t, func() bool {
		relabel(t, f.Client, owner, f.tenantOf("b"))
		relabel(t, f.Client, owner, f.tenantOf("c"))

		return owner.GetLabels()[contract.DrainLabel(f.name)] != ""
	}, "the owner drains")
	require.NotContains(t, f.create(f.child(unique("child"), owner)).GetLabels(), f.shardLabel(),
		"the owner is about to leave")

	moved := fmt.Sprintf(`{"metadata":{"labels":{%q:null,%q:"c"}}}`, contract.DrainLabel(f.name), f.shardLabel())
	require.NoError(t, f.rebalancer().Patch(t.Context(), owner,
		client.RawPatch("application/merge-patch+json", []byte(moved))))
	eventually(t, func() bool {
		shard, labelled := f.create(f.child(unique("child"), owner)).GetLabels()[f.shardLabel()]
		require.NotEqual(t, "b", shard, "nothing is remembered")

		return labelled // unless the owner could not be read in time
	}, "children go to the new shard")
}

// mayRead lets the assigner read a resource of the fixture.
func (f *fixture) mayRead(resource string) {
	f.t.Helper()
	f.allow("owners", ofAssigner,
		rbacv1.PolicyRule{APIGroups: []string{f.kind.Group}, Resources: []string{resource}, Verbs: []string{"get"}})
}
