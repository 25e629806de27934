package rebalancer

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/key"
	"github.com/clusterring/clusterring/tools/testkit/leasetest"
	"github.com/clusterring/clusterring/tools/testkit/ringtest"
)

// A shard that reports that it stops keeps each object until it has released it. When it has released its Lease, it
// loses the rest.
func TestShardThatStopsIsDrained(t *testing.T) {
	w := newTestRing(t)
	w.Join("a", "b")

	var owners []*corev1.ConfigMap

	children := map[string]*corev1.Secret{}

	for _, name := range w.NamesOf("b", 3) {
		cm := w.Main(name, "b")
		owners, children[name] = append(owners, cm), w.Child(cm, "b")
	}

	w.start()
	w.AtRest()
	require.NoError(t, w.Shards["b"].Stop(t.Context()))

	for _, cm := range owners {
		w.Eventually(ringtest.Placed{Shard: "b", Drain: true}, cm)
		require.Equal(t, ringtest.Placed{Shard: "b"}, w.Placed(children[cm.Name]))
	}

	fresh := w.Main("fresh", "") // the rebalancer knows that the shard stops
	w.Eventually(ringtest.Placed{Shard: "a"}, fresh)

	w.Assigned(v1alpha1.ReasonMoving)
	require.Empty(t, w.assignment().LostShards, "it works")

	for _, cm := range owners[:2] {
		w.handOver("b", "a", cm, children[cm.Name])
	}

	last := owners[2]
	require.Equal(t, ringtest.Placed{Shard: "b", Drain: true}, w.Placed(last))
	w.release("b")
	w.Eventually(ringtest.Placed{Shard: "a"}, last, children[last.Name])
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
	w.start()

	cm := w.Main("cm", "")
	w.Eventually(ringtest.Placed{Shard: w.Owner("cm")}, cm)
	w.AtRest()

	w.edit(func(spec *v1alpha1.ClusterRingSpec) { spec.ActiveShards = new(int32(1)) })

	active, standby := "a", "b"
	if w.View().Available("b") {
		active, standby = standby, active
	}

	if w.Placed(cm).Shard == standby {
		w.Eventually(ringtest.Placed{Shard: standby, Drain: true}, cm)
		w.Acknowledge(cm)
	}

	w.Eventually(ringtest.Placed{Shard: active}, cm)
	w.AtRest()
	w.release(active)
	w.Eventually(ringtest.Placed{Shard: standby}, cm)
	w.Join(active)

	w.AtRest()
	require.Equal(t, ringtest.Placed{Shard: standby}, w.Placed(cm), "a shard that comes back stands by")
}

// While a ring is paused, no object moves to balance it. Objects of a lost shard, and new objects, get a shard, and
// drains that are under way are withdrawn.
func TestPausedRing(t *testing.T) {
	w := newTestRing(t)
	w.Join("a", "b")
	w.start()

	var all, children []client.Object

	for i := range 20 {
		cm := w.Main("cm-"+strconv.Itoa(i), "")
		all, children = append(all, cm), append(children, w.Child(cm, ""))
	}

	at := map[string]string{}

	for _, cm := range all {
		at[cm.GetName()] = w.Owner(cm.GetName())
		w.Eventually(ringtest.Placed{Shard: at[cm.GetName()]}, cm)
	}

	w.AtRest()
	w.Join("c")

	moves := slices.IndexFunc(all, func(cm client.Object) bool { return w.Owner(cm.GetName()) == "c" })
	w.Eventually(ringtest.Placed{Shard: at[all[moves].GetName()], Drain: true}, all[moves])
	w.edit(func(spec *v1alpha1.ClusterRingSpec) { spec.Paused = true })

	for _, cm := range all {
		w.Eventually(ringtest.Placed{Shard: at[cm.GetName()]}, cm)
	}

	w.AtRest()

	late := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: all[moves].GetName(),
		UID: all[moves].GetUID()}}
	require.NoError(t, w.Client.Delete(t.Context(), children[moves]))

	for i, child := range children {
		if i == moves {
			child = w.Child(late, "") // its owner is not where its key says
		}

		w.Eventually(ringtest.Placed{Shard: at[child.GetName()]}, child)
	}

	w.AtRest()
	require.NoError(t, w.Client.Get(t.Context(), client.ObjectKeyFromObject(w.Ring), w.Ring))
	require.True(t, meta.IsStatusConditionTrue(w.Ring.Status.Conditions, v1alpha1.ConditionPaused))

	w.release("a")

	for _, cm := range all {
		if at[cm.GetName()] == "a" {
			at[cm.GetName()] = w.Owner(cm.GetName())
		}

		w.Eventually(ringtest.Placed{Shard: at[cm.GetName()]}, cm)
	}

	w.AtRest()
	w.edit(func(spec *v1alpha1.ClusterRingSpec) { spec.Paused = false })

	for _, cm := range all {
		to := ringtest.Placed{Shard: w.Owner(cm.GetName())}
		if to.Shard != at[cm.GetName()] {
			w.Eventually(ringtest.Placed{Shard: at[cm.GetName()], Drain: true}, cm)
			w.Acknowledge(cm)
		}

		w.Eventually(to, cm)
	}

	w.AtRest()
	require.NoError(t, w.Client.Get(t.Context(), client.ObjectKeyFromObject(w.Ring), w.Ring))
	require.Nil(t, meta.FindStatusCondition(w.Ring.Status.Conditions, v1alpha1.ConditionPaused))
}

// A tenant who may create Leases takes no object and holds none back if the ring names the namespaces of its shards.
// Without that, the tenant's shards get objects of other namespaces.
func TestTenantsTakeNoObjects(t *testing.T) {
	w := newTestRing(t, func(r *v1alpha1.ClusterRing) { r.Spec.ShardNamespaces = []string{r.Name[len("ring-"):]} })
	w.Join("a", "b")

	var sites []*corev1.ConfigMap
	for i := range 30 {
		sites = append(sites, w.Main(fmt.Sprintf("site-%d", i), ""))
	}

	w.start()

	for _, s := range sites {
		w.Eventually(ringtest.Placed{Shard: w.Owner(s.Name)}, s)
	}

	tenant := w.Plane.Namespace(t)
	for _, name := range []string{"forged-0", "forged-1", "forged-2", "forged-3", "a", "b"} {
		forged := &leasetest.Shard{Client: w.Client, Ring: w.Ring.Name, Namespace: tenant, Name: name,
			Duration: 24 * time.Hour}
		require.NoError(t, forged.Acquire(t.Context()))
		t.Cleanup(func() { require.NoError(t, forged.Delete(context.WithoutCancel(t.Context()))) })
	}

	// The rebalancer sees the release after the Leases of the tenant.
	w.release("b")

	for _, s := range sites {
		w.Eventually(ringtest.Placed{Shard: "a"}, s)
	}

	require.NoError(t, w.Client.Get(t.Context(), client.ObjectKeyFromObject(w.Ring), w.Ring))
	w.Ring.Spec.ShardNamespaces = nil
	require.NoError(t, w.Client.Update(t.Context(), w.Ring))

	// All namespaces count: a is held twice, and the tenant gets what is new, as soon as the rebalancer has seen the
	// change.
	for i := range 100 {
		last := w.Main(fmt.Sprintf("last-%d", i), "")
		require.Eventually(t, func() bool { return w.Placed(last).Shard != "" }, 20*time.Second, 10*time.Millisecond)

		if w.Placed(last).Shard != "a" {
			return
		}
	}

	t.Fatal("a gets what is new, although it is held twice")
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

// acknowledge releases what is drained, except one object, until no other object is left at the shard.
func (w *testRing) acknowledge(all client.ObjectList, shard, except string) {
	w.Helper()

	labels := w.Ring.LabelKeys()

	require.Eventually(w, func() bool {
		require.NoError(w, w.Client.List(w.Context(), all, client.InNamespace(w.Namespace),
			client.MatchingLabels{labels.Shard: shard}))

		left := 0

		items, err := meta.ExtractList(all)
		require.NoError(w, err)

		for _, item := range items {
			o := item.(client.Object) //nolint:forcetypeassert // it is one
			if o.GetName() == except {
				continue
			}

			left++

			if _, drained := o.GetLabels()[labels.Drain]; drained {
				w.Acknowledge(o)
			}
		}

		return left == 0
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
	w.acknowledge(&corev1.ConfigMapList{}, "b", stuck.Name)
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

	view := w.View()
	secrets := 0

	for i := 0; secrets < 20; i++ {
		s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: fmt.Sprint("s-", i),
			Labels: w.Labels("b")}}
		if shard, _ := view.Owner(key.Key{Kind: "Secret", Namespace: w.Namespace, Name: s.Name}); shard == "a" {
			require.NoError(t, w.Client.Create(t.Context(), s))

			secrets++
		}
	}

	w.start("--drain-timeout=1s", "--max-drains-per-shard=3")
	w.acknowledge(&corev1.SecretList{}, "b", "")

	message := w.says(v1alpha1.ReasonDrainsLate, "shard b has acknowledged no drain of configmaps since ")
	_, since, _ := strings.Cut(message, " since ")
	since, _, _ = strings.Cut(since, " ")
	at, err := time.Parse(time.RFC3339, since)
	require.NoError(t, err, message)

	created := w.Ring.CreationTimestamp.Time
	require.WithinRange(t, at, created, created.Add(time.Minute), message)

	w.acknowledge(&corev1.ConfigMapList{}, "b", "")
	w.AtRest()
}
