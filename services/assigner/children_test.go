package assigner_test

import (
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/leasetest"
)

// account is the service account of the shards of a fixture, and of others who write.
const account = "controller"

// writers lets the service accounts of the namespace create children in the namespace of the fixture.
func (f *fixture) writers(namespace string) {
	f.t.Helper()
	require.NoError(f.t, f.Client.Create(f.t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: account}}))
	require.NoError(f.t, f.Client.Create(f.t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: "writers-of-" + namespace},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "system:serviceaccounts:" + namespace}},
	}))
}

// pod returns a client with a token as the kubelet gives it to the Pod; one that is bound to no Pod if the name is empty.
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
	c, err := client.New(config, client.Options{Scheme: f.Client.Scheme()})
	require.NoError(f.t, err)

	return c
}

// childBy returns the shard of a new child that the client creates; empty for none.
func (f *fixture) childBy(c client.Client, owner *unstructured.Unstructured) string {
	f.t.Helper()

	u := f.child(unique("child"), owner)
	require.NoError(f.t, c.Create(f.t.Context(), u))

	return u.GetLabels()[f.shardLabel()]
}

// grandchildBy returns the shard of a new object that the client creates, which follows a child; empty for none.
func (f *fixture) grandchildBy(c client.Client, between *unstructured.Unstructured) string {
	f.t.Helper()

	u := f.child(unique("grandchild"), between)
	u.SetKind("Secret")
	require.NoError(f.t, c.Create(f.t.Context(), u))

	return u.GetLabels()[f.shardLabel()]
}

// A child that a shard creates gets that shard: while objects move, before anything else is known, and after the ring has
// converged, whatever the key of the owner says. Nobody reads what it follows: the assigner has no right to do that here.
// Children of other writers wait while objects move.
func TestChildrenOfShards(t *testing.T) {
	f := newFixtureOf(t, "by-shard", []v1alpha1.ControlledResource{{Resource: "configmaps"}, {Resource: "secrets"}}, "a", "b", "c")
	tenant := f.Namespace(t)
	f.writers(f.namespace)
	f.writers(tenant)
	f.changeRing(func(r *v1alpha1.ClusterRing) { r.Spec.ShardNamespaces = []string{f.namespace} })

	slot := &leasetest.Shard{Client: f.Client, Ring: f.name, Namespace: f.namespace, Name: "slot-0"}
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
			require.Equal(t, want, f.grandchildBy(c, between), when)
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
	eventually(t, func() bool { return f.childBy(pods["a"], owner) == "" }, "a shard that has released its Lease gets nothing")
}

// A child that somebody else creates waits only while objects of its owner's resource may move. The status says that of each
// resource alone, whatever keeps the ring from converging; TestBadResourceKeepsNoOtherFromConverging shows what it says.
func TestChildrenWaitForTheirOwnersResourceOnly(t *testing.T) {
	f := newFixture(t, "alone", "a", "b", "c")
	other := schema.GroupVersionKind{Group: f.kind.Group, Version: "v1", Kind: "Ship"}
	f.serve(other)
	f.changeRing(func(r *v1alpha1.ClusterRing) {
		r.Spec.Resources = append(r.Spec.Resources, v1alpha1.RingResource{Group: other.Group, Resource: "ships"})
	})
	f.record(f.ring().Spec.Resources...)
	start(t, f.Plane)
	f.registered()

	ship := f.website("blog")
	ship.SetGroupVersionKind(other)
	f.create(ship)

	owner := f.create(f.website("blog"))
	require.Empty(t, f.childBy(f.Client, owner), "nothing is known about any object yet")

	settled := func(resource string, shards ...string) {
		ring := f.ring()
		before := ring.DeepCopy()

		for i := range ring.Status.Assignment.Resources {
			if r := &ring.Status.Assignment.Resources[i]; r.Resource == resource {
				r.Fingerprint = fingerprint(shards)
			}
		}

		require.NoError(t, f.Client.Status().Patch(t.Context(), ring, client.MergeFrom(before)))
	}

	settled("websites", "a", "b", "c")
	eventually(t, func() bool { return f.childBy(f.Client, owner) != "" }, "objects of its owner's resource do not move")

	for range 30 {
		require.Equal(t, f.owner("blog"), f.childBy(f.Client, owner))
		require.Empty(t, f.childBy(f.Client, ship), "objects of that resource may move")
	}

	settled("websites", "a", "b")
	eventually(t, func() bool { return f.childBy(f.Client, owner) == "" }, "they move, because a shard has joined since")
}

// If the key of owners is a label, nobody reads the owner of a child that a shard creates.
func TestChildrenOfShardsNeedNoRead(t *testing.T) {
	f := newFixture(t, "no-read", "a", "b", "c")
	f.mayRead("websites")
	f.writers(f.namespace)
	start(t, f.Plane)
	f.registered()
	owner := f.keyedAt("b")

	b, stranger := f.pod(f.namespace, "b"), f.pod(f.namespace, "stranger")
	eventually(t, func() bool { return f.childBy(stranger, owner) == "b" && f.childBy(b, owner) == "b" }, "children go with their owner")

	before := f.reads()
	require.Positive(t, before, "those of strangers")

	for range 20 {
		require.Equal(t, "b", f.childBy(b, owner))
	}

	require.Equal(t, before, f.reads())
}

// reads returns how often the API server was asked for a website of the fixture.
func (f *fixture) reads() int {
	f.t.Helper()

	body, err := kubernetes.NewForConfigOrDie(f.Config).RESTClient().Get().AbsPath("/metrics").DoRaw(f.t.Context())
	require.NoError(f.t, err)

	total := 0

	for _, line := range regexp.MustCompile(`(?m)^apiserver_request_total\{.*group="`+f.kind.Group+`".*verb="GET".*\} (\d+)$`).FindAllSubmatch(body, -1) {
		n, err := strconv.Atoi(string(line[1]))
		require.NoError(f.t, err)

		total += n
	}

	return total
}
