package rings

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/key"
	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/tools/lab/localplane"
	"github.com/clusterring/clusterring/tools/lab/localplane/leasetest"
)

func TestMain(m *testing.M) { os.Exit(localplane.Main(m)) }

// testRing is a ring on the real API server, in a namespace of its own, with ConfigMaps and the Secrets that they control. The
// test plays shards and users.
type testRing struct {
	*testing.T
	plane  *localplane.Plane
	client client.Client
	ring   *v1alpha1.ClusterRing
	ns     string
	shards map[string]*leasetest.Shard
}

func newTestRing(t *testing.T) *testRing {
	t.Helper()

	plane := localplane.Shared(t)
	require.NoError(t, plane.Install(t.Context(), "services/rebalancer/testdata/rights.yaml"))

	w := &testRing{T: t, plane: plane, client: plane.Client, ns: plane.Namespace(t), shards: map[string]*leasetest.Shard{}}
	w.ring = &v1alpha1.ClusterRing{
		ObjectMeta: metav1.ObjectMeta{Name: "ring-" + w.ns},
		Spec: v1alpha1.ClusterRingSpec{
			Resources: []v1alpha1.RingResource{{
				Resource:            "configmaps",
				ControlledResources: []v1alpha1.ControlledResource{{Resource: "secrets"}},
			}},
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"ring": w.ns}},
		},
	}

	ns := &corev1.Namespace{}
	require.NoError(t, w.client.Get(t.Context(), types.NamespacedName{Name: w.ns}, ns))
	ns.Labels = map[string]string{"ring": w.ns}
	require.NoError(t, w.client.Update(t.Context(), ns))

	require.NoError(t, w.client.Create(t.Context(), w.ring))
	t.Cleanup(w.removeRing)

	return w
}

// removeRing removes the ring for later tests, whatever state it is in.
func (w *testRing) removeRing() {
	ctx := context.Background()
	none := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
	require.NoError(w, client.IgnoreNotFound(w.client.Patch(ctx, w.ring, none)))
	require.NoError(w, client.IgnoreNotFound(w.client.Delete(ctx, w.ring)))

	for _, s := range w.shards {
		require.NoError(w, client.IgnoreNotFound(s.Delete(ctx)))
	}
}

// join makes shards acquire their Leases.
func (w *testRing) join(names ...string) {
	w.Helper()

	for _, name := range names {
		if w.shards[name] == nil {
			w.shards[name] = &leasetest.Shard{Client: w.client, Ring: w.ring.Name, Namespace: w.ns, Name: name}
		}

		require.NoError(w, w.shards[name].Acquire(w.Context()))
	}
}

// view returns the view of the ring's current Leases.
func (w *testRing) view() *membership.View {
	w.Helper()

	var list coordinationv1.LeaseList
	require.NoError(w, w.client.List(w.Context(), &list, client.MatchingLabels{v1alpha1.LabelClusterRing: w.ring.Name}))

	leases := make([]*coordinationv1.Lease, 0, len(list.Items))
	for i := range list.Items {
		leases = append(leases, &list.Items[i])
	}

	return membership.NewView(w.ring.Name, leases, nil)
}

// namesOf returns n names of ConfigMaps whose keys the shard currently owns.
func (w *testRing) namesOf(shard string, n int) []string {
	w.Helper()

	view := w.view()

	var names []string

	for i := 0; len(names) < n; i++ {
		require.Less(w, i, 10_000, "shard %s owns nothing", shard)

		name := fmt.Sprintf("main-%s-%d", shard, i)
		if owner, ok := view.Owner(key.Key{Kind: "ConfigMap", Namespace: w.ns, Name: name}); ok && owner == shard {
			names = append(names, name)
		}
	}

	return names
}

// main creates a ConfigMap at a shard.
func (w *testRing) main(name, shard string) *corev1.ConfigMap {
	w.Helper()

	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name, Labels: map[string]string{v1alpha1.ShardLabel(w.ring.Name): shard}}}
	require.NoError(w, w.client.Create(w.Context(), cm))

	return cm
}

// placed is the content of the ring's labels of an object.
type placed struct {
	Shard string
	Drain bool
}

func (w *testRing) placed(obj client.Object) placed {
	w.Helper()
	require.NoError(w, w.client.Get(w.Context(), client.ObjectKeyFromObject(obj), obj))

	_, drain := obj.GetLabels()[v1alpha1.DrainLabel(w.ring.Name)]

	return placed{Shard: obj.GetLabels()[v1alpha1.ShardLabel(w.ring.Name)], Drain: drain}
}

// eventually waits until the objects are placed as wanted.
func (w *testRing) eventually(want placed, objs ...client.Object) {
	w.Helper()

	for _, obj := range objs {
		require.Eventually(w, func() bool { return w.placed(obj) == want }, 20*time.Second, 10*time.Millisecond,
			"%T %s should become %+v", obj, obj.GetName(), want)
	}
}

// acknowledge does what a shard does with a drained object.
func (w *testRing) acknowledge(obj client.Object) {
	w.Helper()

	body := fmt.Sprintf(`{"metadata":{"resourceVersion":%q,"labels":{%q:null,%q:null}}}`,
		obj.GetResourceVersion(), v1alpha1.ShardLabel(w.ring.Name), v1alpha1.DrainLabel(w.ring.Name))
	require.NoError(w, w.client.Patch(w.Context(), obj, client.RawPatch(types.MergePatchType, []byte(body))))
}

// assigned waits until the condition Assigned has a reason, and returns it.
func (w *testRing) assigned(reason string) metav1.Condition {
	w.Helper()

	var c *metav1.Condition

	require.Eventually(w, func() bool {
		require.NoError(w, w.client.Get(w.Context(), client.ObjectKeyFromObject(w.ring), w.ring))
		c = meta.FindStatusCondition(w.ring.Status.Conditions, v1alpha1.ConditionAssigned)

		return c != nil && c.Reason == reason
	}, 30*time.Second, 20*time.Millisecond, "the condition Assigned should have the reason %s; last: %+v", reason, &c)

	return *c
}

// versions returns the resource versions of objects, to detect writes.
func (w *testRing) versions(objs ...client.Object) []string {
	w.Helper()

	var all []string

	for _, o := range objs {
		w.placed(o)
		all = append(all, o.GetName()+"@"+o.GetResourceVersion())
	}

	return slices.Clip(all)
}
