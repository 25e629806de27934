package rebalancer

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/leasetest"
	"github.com/clusterring/clusterring/tools/testkit/ringtest"
)

// A shard that reports that it stops keeps each object until it has released it. When it has released its Lease, it
// loses the rest.
func TestShardThatStopsIsDrained(t *testing.T) {
	w := newTestRing(t)
	w.Join("a", "b")

	names := w.NamesOf("b", 2)
	first, last := w.Main(names[0], "b"), w.Main(names[1], "b")
	child, lastChild := w.Child(first, "b"), w.Child(last, "b")

	w.start()
	w.AtRest()
	require.NoError(t, w.Shards["b"].Stop(t.Context()))
	w.Eventually(ringtest.Placed{Shard: "b", Drain: true}, first, last)

	fresh := w.Main("fresh", "") // the rebalancer knows that the shard stops
	w.Eventually(ringtest.Placed{Shard: "a"}, fresh)

	w.Assigned(v1alpha1.ReasonMoving)
	require.Empty(t, w.assignment().LostShards, "it works")
	w.handOver("b", "a", first, child)
	require.Equal(t, ringtest.Placed{Shard: "b", Drain: true}, w.Placed(last))
	require.Equal(t, ringtest.Placed{Shard: "b"}, w.Placed(lastChild))
	w.release("b")
	w.Eventually(ringtest.Placed{Shard: "a"}, last, lastChild)
	w.AtRest()
}

// A shard that stops keeps its objects if it is the only one. A process that comes back under its name has them.
func TestTheOnlyShardThatStopsKeepsItsObjects(t *testing.T) {
	w := newTestRing(t)
	w.Join("a")

	cm := w.Main(w.NamesOf("a", 1)[0], "a")

	w.start()
	w.AtRest()
	require.NoError(t, w.Shards["a"].Stop(t.Context()))
	w.Converged("") // the rebalancer knows that no shard is available

	version := w.Versions(cm)

	w.Join("a")
	w.AtRest()
	require.Equal(t, version, w.Versions(cm))
}

// With one active shard, the others stand by: an object moves only by a drain while its shard works, and at once when
// the shard is lost.
func TestOneActiveShard(t *testing.T) {
	w := newTestRing(t)
	w.Join("a", "b")
	ofA, ofB := w.Main(w.NamesOf("a", 1)[0], "a"), w.Main(w.NamesOf("b", 1)[0], "b")

	w.start()
	w.AtRest()
	w.edit(func(spec *v1alpha1.ClusterRingSpec) { spec.ActiveShards = new(int32(1)) })

	active, standby, moves := "a", "b", ofB
	if w.View().Available("b") {
		active, standby, moves = "b", "a", ofA
	}

	w.handOver(standby, active, moves)
	w.AtRest()
	w.release(active)
	w.Eventually(ringtest.Placed{Shard: standby}, ofA, ofB)
	w.Join(active)
	w.AtRest()
	require.Equal(t, ringtest.Placed{Shard: standby}, w.Placed(moves), "a shard that comes back stands by")
}

// While a ring is paused, no object moves to balance it. Objects of a lost shard, and new objects, get a shard, and
// drains that are under way are withdrawn.
func TestPausedRing(t *testing.T) {
	w := newTestRing(t)
	w.Join("a", "b", "c")

	names := w.NamesOf("c", 20)

	w.release("c")

	moves := w.Main(names[slices.IndexFunc(names, func(name string) bool { return w.Owner(name) == "b" })], "b")
	lost := w.Main(w.NamesOf("a", 1)[0], "a")

	w.start()
	w.AtRest()
	w.Join("c")
	w.Eventually(ringtest.Placed{Shard: "b", Drain: true}, moves)
	w.edit(func(spec *v1alpha1.ClusterRingSpec) { spec.Paused = true })

	child := w.Child(moves, "") // its owner is not where its key says
	w.Eventually(ringtest.Placed{Shard: "b"}, moves, child)
	w.AtRest()
	require.True(t, meta.IsStatusConditionTrue(w.Ring.Status.Conditions, v1alpha1.ConditionPaused))

	w.release("a")
	w.Eventually(ringtest.Placed{Shard: w.Owner(lost.Name)}, lost)
	w.AtRest()
	require.Equal(t, ringtest.Placed{Shard: "b"}, w.Placed(moves))
	w.edit(func(spec *v1alpha1.ClusterRingSpec) { spec.Paused = false })
	w.handOver("b", "c", moves, child)
	w.AtRest()
	require.Nil(t, meta.FindStatusCondition(w.Ring.Status.Conditions, v1alpha1.ConditionPaused))
}

// A tenant who may create Leases takes no object and holds none back if the ring names the namespaces of its shards.
// Without that, the tenant's shards get objects of other namespaces.
func TestTenantsTakeNoObjects(t *testing.T) {
	w := newTestRing(t, func(r *v1alpha1.ClusterRing) { r.Spec.ShardNamespaces = []string{r.Name[len("ring-"):]} })
	w.Join("a", "b")

	var sites []client.Object
	for _, name := range append(w.NamesOf("a", 15), w.NamesOf("b", 15)...) {
		sites = append(sites, w.Main(name, w.Owner(name)))
	}

	w.start()
	w.AtRest()

	tenant := w.Plane.Namespace(t)
	for _, name := range []string{"forged-0", "forged-1", "forged-2", "forged-3", "a", "b"} {
		forged := &leasetest.Shard{Client: w.Client, Ring: w.Ring.Name, Namespace: tenant, Name: name,
			Duration: 24 * time.Hour}
		require.NoError(t, forged.Acquire(t.Context()))
		t.Cleanup(func() { require.NoError(t, forged.Delete(context.WithoutCancel(t.Context()))) })
	}

	w.release("b") // the rebalancer sees the release after the Leases of the tenant
	w.Eventually(ringtest.Placed{Shard: "a"}, sites...)

	// All namespaces count: a is held twice, and the tenant gets what is there.
	w.edit(func(s *v1alpha1.ClusterRingSpec) { s.ShardNamespaces = nil })

	w.says(v1alpha1.ReasonMoving, "shard a holds its Lease")

	tenants := w.Main("tenants", "")
	require.Eventually(t, func() bool { return strings.Trim(w.Placed(tenants).Shard, "a") != "" }, noticed,
		10*time.Millisecond)
}

// joinElsewhere lets a shard join that does not watch the namespace of the objects.
func (w *testRing) joinElsewhere(name string) {
	w.Shards[name] = w.Shard(name, 0)
	w.Shards[name].Namespaces = []string{"elsewhere"}
	w.Join(name)
}

// A shard that does not watch the namespace would never acknowledge a drain.
func TestShardsGetOnlyObjectsThatTheyWatch(t *testing.T) {
	w := newTestRing(t)
	w.joinElsewhere("a")

	owner, found := w.Main("owner", "a"), w.Main("found", "")
	child := w.Child(owner, "a")

	w.start()
	require.Contains(t, w.Assigned(v1alpha1.ReasonNamespacesNotWatched).Message,
		"nobody works on objects in the namespaces "+w.Namespace+", which the ring covers and no shard watches: "+
			"shards that watch only the namespaces elsewhere: a; ")
	w.AtRest()
	require.Equal(t, ringtest.Placed{}, w.Placed(found), "it gets no shard that does not see it")
	require.Empty(t, found.Labels, "nor an empty label")
	require.Equal(t, ringtest.Placed{Shard: "a"}, w.Placed(owner), "there is nobody to give it to")

	w.Join("b")
	w.Eventually(ringtest.Placed{Shard: "b"}, owner, found, child)
	w.AtRest()
	w.Assigned(v1alpha1.ReasonAllAssigned)
}

func TestDeletedRingWhoseObjectsNobodyWatches(t *testing.T) {
	w := newTestRing(t)
	w.joinElsewhere("a")

	owner := w.Main("owner", "a")
	child := w.Child(owner, "a")

	w.start()
	w.Assigned(v1alpha1.ReasonNamespacesNotWatched)
	w.delete()
	w.gone()
	require.Equal(t, ringtest.Placed{}, w.Placed(owner))
	require.Equal(t, ringtest.Placed{}, w.Placed(child))
}

// acknowledge releases what is drained, except one object, until no other object of the kind is left at the shard.
func (w *testRing) acknowledge(kind, shard, except string) {
	w.Helper()

	all := &metav1.PartialObjectMetadataList{}
	all.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(kind))

	require.Eventually(w, func() bool {
		require.NoError(w, w.Client.List(w.Context(), all, client.InNamespace(w.Namespace),
			client.MatchingLabels(w.Labels(shard))))

		left := slices.DeleteFunc(all.Items, func(o metav1.PartialObjectMetadata) bool { return o.Name == except })
		for i := range left {
			if left[i].Labels[w.Ring.LabelKeys().Drain] != "" {
				w.Acknowledge(&left[i])
			}
		}

		return len(left) == 0
	}, 40*time.Second, 10*time.Millisecond, "the shard should be asked for all objects")
}

// A drain that is never acknowledged is reported, and never forced. It costs its own permit: all other objects of the
// shard move.
func TestLateDrainHoldsUpNoOther(t *testing.T) {
	w := newTestRing(t)
	w.Join("a", "b")

	for _, name := range w.NamesOf("a", 60) {
		w.Main(name, "b")
	}

	w.start("--drain-timeout=1s", "--max-drains-per-shard=1")

	message := w.Assigned(v1alpha1.ReasonDrainsLate).Message
	_, name, _ := strings.Cut(message, "such as configmaps "+w.Namespace+"/")
	name, _, _ = strings.Cut(name, " at shard b")
	stuck := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: name}}
	require.Equal(t, ringtest.Placed{Shard: "b", Drain: true}, w.Placed(stuck), message)
	w.announces(v1alpha1.ReasonDrainsLate, "shard b has not released")
	w.acknowledge("ConfigMap", "b", stuck.Name)
	require.Equal(t, ringtest.Placed{Shard: "b", Drain: true}, w.Placed(stuck))
	w.Acknowledge(stuck)
	w.AtRest()
	w.Assigned(v1alpha1.ReasonAllAssigned)
}

// A shard that runs no controller for one resource releases the objects of all others, and the status names the
// resource.
func TestShardWithoutAController(t *testing.T) {
	w := newTestRing(t, func(r *v1alpha1.ClusterRing) {
		r.Spec.Resources = []v1alpha1.RingResource{{Resource: "configmaps"}, {Resource: "secrets"}}
	})
	w.Join("a", "b")

	for _, name := range w.NamesOf("a", 20) {
		w.Main(name, "b")
	}

	for _, name := range w.fixture.NamesOf("a", 20, w.owners(named("", "Secret", w.Namespace))) {
		require.NoError(t, w.Client.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
			Namespace: w.Namespace, Name: name, Labels: w.Labels("b"),
		}}))
	}

	w.start("--drain-timeout=1s", "--max-drains-per-shard=3")
	w.acknowledge("Secret", "b", "")

	w.says(v1alpha1.ReasonDrainsLate, "shard b has acknowledged no drain of configmaps since ")
	w.acknowledge("ConfigMap", "b", "")
	w.AtRest()
}
