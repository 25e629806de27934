package floods_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/leasetest"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

const (
	// largeLeases is how many Leases of 1 MB there are.
	largeLeases = 100
	// maxShards is how many shards of a ring count; manyShards is how many Leases there are.
	maxShards, manyShards = 2000, 2600
	// madeUp is how many rings there are Leases of that do not exist.
	madeUp = 20
	// writers is how many Leases are written at a time.
	writers = 4
)

// newRing creates a ring of the ConfigMaps in a new namespace, which the services may read and write.
func newRing(t *testing.T, plane *localplane.Plane, name string) (namespace string) {
	t.Helper()

	namespace = plane.Namespace(t)
	require.NoError(t, plane.Client.Create(t.Context(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			contract.LabelAggregateToRebalancer: "true", contract.LabelAggregateToAssigner: "true",
			contract.LabelAggregateToRingQuery: "true",
		}},
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"},
			Verbs: []string{"get", "list", "watch", "patch"}}},
	}))
	require.NoError(t, plane.Aggregate(t.Context()))
	require.NoError(t, plane.Client.Create(t.Context(), &v1alpha1.ClusterRing{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.ClusterRingSpec{
			Resources:         []v1alpha1.RingResource{{Resource: "configmaps"}},
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}},
		},
	}))

	return namespace
}

// leaseOf returns the Lease of a shard that holds it for long.
func leaseOf(ring, namespace, name string) *coordinationv1.Lease {
	now := metav1.NowMicro()

	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name,
			Labels: map[string]string{contract.LabelClusterRing: ring}},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: &name, LeaseDurationSeconds: new(int32(3600)), AcquireTime: &now, RenewTime: &now,
			LeaseTransitions: new(int32(1)),
		},
	}
}

// each calls a function for many numbers, a few at a time.
func each(t *testing.T, n int, do func(i int) error) {
	t.Helper()

	var group errgroup.Group
	group.SetLimit(writers)

	for i := range n {
		group.Go(func() error { return do(i) })
	}

	require.NoError(t, group.Wait())
}

// counts are the numbers of shards in the status of a ring.
type counts struct{ shards, available int32 }

// awaitShards waits until the status of the ring has these numbers, and returns it.
func awaitShards(t *testing.T, plane *localplane.Plane, name string, want counts) *v1alpha1.ClusterRing {
	t.Helper()

	ring := &v1alpha1.ClusterRing{}
	require.Eventually(t, func() bool {
		err := plane.Client.Get(t.Context(), types.NamespacedName{Name: name}, ring)
		return err == nil && counts{ring.Status.Shards, ring.Status.AvailableShards} == want
	}, patience, interval, "the ring should have %d shards, %d of them available", want.shards, want.available)

	return ring
}

// TestLargeLeases: every service reads Leases of 1 MB when it starts and while they change.
func TestLargeLeases(t *testing.T) {
	plane, ring := localplane.Shared(t), "large-leases"
	namespace := newRing(t, plane, ring)

	labels := map[string]string{contract.LabelClusterRing: ring}
	for i := range 1200 { // long keys, which managedFields contains once more
		labels[fmt.Sprintf("%s/%059d", strings.Repeat("x", 253-190)+strings.Repeat("."+strings.Repeat("x", 62), 3),
			i)] = strings.Repeat("x", 63)
	}

	large := func(i int) *coordinationv1.Lease {
		l := leaseOf(ring, namespace, fmt.Sprintf("large-%03d", i))
		l.Labels = labels
		l.Annotations = map[string]string{"large": strings.Repeat("x", 250_000)}

		return l
	}

	each(t, largeLeases, func(i int) error { return plane.Client.Create(t.Context(), large(i)) })

	h := begin(t)
	awaitShards(t, plane, ring, counts{largeLeases, largeLeases})

	// They change.
	renew := client.RawPatch(types.MergePatchType,
		fmt.Appendf(nil, `{"spec":{"renewTime":%q}}`, metav1.NowMicro().Format(metav1.RFC3339Micro)))
	each(t, largeLeases, func(i int) error {
		return plane.Client.Patch(t.Context(), &coordinationv1.Lease{ObjectMeta: large(i).ObjectMeta}, renew)
	})

	h.survived(namespace, "large-0")
}

// TestManyShards: a ring with more Leases than count says so, and costs no service its life.
func TestManyShards(t *testing.T) {
	plane, name := localplane.Shared(t), "many-shards"
	namespace := newRing(t, plane, name)
	h := begin(t)

	each(t, manyShards, func(i int) error {
		return plane.Client.Create(t.Context(), leaseOf(name, namespace, fmt.Sprintf("shard-%05d", i)))
	})

	// Rings that do not exist.
	each(t, madeUp, func(i int) error {
		return plane.Client.Create(t.Context(), leaseOf(fmt.Sprintf("made-up-%d", i), namespace, fmt.Sprintf("other-%d", i)))
	})

	ring := awaitShards(t, plane, name, counts{manyShards, maxShards})
	c := meta.FindStatusCondition(ring.Status.Conditions, v1alpha1.ConditionShardsAvailable)
	require.NotNil(t, c)
	require.Equal(t, v1alpha1.ReasonShardsIgnored, c.Reason)
	require.Contains(t, c.Message, "use several rings")

	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "object"}}
	require.NoError(t, plane.Client.Create(t.Context(), cm))
	require.Eventually(t, func() bool {
		err := plane.Client.Get(t.Context(), client.ObjectKeyFromObject(cm), cm)
		return err == nil && cm.Labels[contract.ShardLabel(name)] != ""
	}, patience, interval, "objects should still be assigned")

	h.survived(namespace, "shard-0", "made-up-", "other-")
}

// strays is how many Leases there are of rings that do not exist.
const strays = 10_000

// TestLeasesOfRingsThatDoNotExist: a shard is given up in time, however many Leases of rings that do not exist appear,
// fall silent, and are renewed.
func TestLeasesOfRingsThatDoNotExist(t *testing.T) {
	const d = 4 * time.Second

	plane, ring := localplane.Shared(t), "among-strays"
	namespace, madeUp := newRing(t, plane, ring), plane.Namespace(t)
	h := begin(t)

	t.Cleanup(func() {
		require.NoError(t, plane.Client.DeleteAllOf(context.WithoutCancel(t.Context()), &coordinationv1.Lease{},
			client.InNamespace(madeUp)))
	})

	crash := map[string]func(){}

	for i := range 5 { // of which most stay, because shards that fall silent together get more time
		shard := &leasetest.Shard{Client: plane.Client, Ring: ring, Namespace: namespace, Name: fmt.Sprintf("shard-%d", i),
			Duration: d}
		require.NoError(t, shard.Acquire(t.Context()))

		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)

		go func() { done <- shard.Run(ctx) }()

		crash[shard.Name] = func() {
			cancel()
			require.NoError(t, <-done)
		}
	}

	awaitShards(t, plane, ring, counts{5, 5})

	stray := func(i int) *coordinationv1.Lease {
		l := leaseOf(fmt.Sprintf("made-up-%d", i), madeUp, fmt.Sprintf("stray-%d", i))
		l.Spec.LeaseDurationSeconds = ptr.To[int32](1)

		return l
	}
	renewal := func(i int) error {
		at := metav1.NowMicro().Format(metav1.RFC3339Micro)

		return plane.Client.Patch(t.Context(), stray(i),
			client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"renewTime":%q}}`, at)))
	}

	// falls has a shard fall silent, and renews the strays until its Lease is taken.
	falls := func(name string) {
		t.Helper()
		crash[name]()
		delete(crash, name)

		began, taken := clock.RealClock{}.Now(), false
		for i := 0; !taken; i += 200 {
			each(t, 200, func(n int) error { return renewal((i + n) % strays) })

			l := &coordinationv1.Lease{}
			require.NoError(t, plane.Client.Get(t.Context(), types.NamespacedName{Namespace: namespace, Name: name}, l))
			taken = *l.Spec.HolderIdentity == contract.LeaseControllerIdentity

			require.Less(t, clock.RealClock{}.Since(began), 3*d, "%s is not given up", name)
		}

		t.Logf("%s was given up after %s", name, clock.RealClock{}.Since(began))
	}

	each(t, strays, func(i int) error { return plane.Client.Create(t.Context(), stray(i)) })
	falls("shard-0")
	each(t, strays, renewal)
	falls("shard-1")

	for _, end := range crash {
		end()
	}

	h.survived(namespace, "stray-", "made-up-")
}
