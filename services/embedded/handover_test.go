package embedded

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/leasemonitor"
	"github.com/clusterring/clusterring/services/rebalancer"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

// services runs lease monitor and rebalancer, with their own rights, until the test ends.
func (w *world) services() {
	w.Helper()

	ctx, cancel := context.WithCancel(context.WithoutCancel(w.Context()))
	commands := map[string]*cobra.Command{"leasemonitor": leasemonitor.NewCommand(), "rebalancer": rebalancer.NewCommand()}
	ended := make(chan error, len(commands))

	for name, cmd := range commands {
		cmd.SetArgs([]string{
			"--kubeconfig=" + w.plane.ServiceKubeconfig(w, name), "--metrics-bind-address=0", "--health-probe-bind-address=0", "--log-format=text",
		})
		cmd.SetOut(io.Discard)
		cmd.SetErr(w.Output())

		go func() { ended <- cmd.ExecuteContext(ctx) }()
	}

	w.Cleanup(func() {
		cancel()

		for range commands {
			require.NoError(w, <-ended)
		}
	})
}

// history is what the API server stored, of the ring and of objects, in the order in which it did.
type history struct {
	*world
	rings, objects watch.Interface
}

func (w *world) record() *history {
	w.Helper()

	c, err := client.NewWithWatch(w.plane.Config, client.Options{Scheme: w.client.Scheme()})
	require.NoError(w, err)

	rings, err := c.Watch(w.Context(), &v1alpha1.ClusterRingList{})
	require.NoError(w, err)

	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(websites)
	objects, err := c.Watch(w.Context(), list, client.InNamespace(w.objects))
	require.NoError(w, err)

	return &history{w, rings, objects}
}

// write is one write of the shard or drain label of an object.
type write struct {
	version          int64
	object, by, then string
}

// end returns who held the ring from which resource version on, and the writes of labels by sharders, up to the given last versions.
func (h *history) end(lastRing, lastObject int64) (holders []write, writes []write) {
	h.Helper()

	for e := range h.rings.ResultChan() {
		ring, ok := e.Object.(*v1alpha1.ClusterRing)
		require.True(h, ok)

		holder := "services"
		if value, said := ring.Annotations[contract.AnnotationSharder]; said {
			holder = value
		}

		if v := version(h, ring); ring.Name == ringName {
			if n := len(holders); n == 0 || holders[n-1].by != holder {
				holders = append(holders, write{version: v, by: holder})
			}

			if v >= lastRing {
				break
			}
		}
	}

	h.rings.Stop()

	labels := map[string]string{}

	for e := range h.objects.ResultChan() {
		u, ok := e.Object.(*unstructured.Unstructured)
		require.True(h, ok)

		now := u.GetLabels()[contract.ShardLabel(ringName)] + "," + u.GetLabels()[contract.DrainLabel(ringName)]
		if labels[u.GetName()] != now {
			labels[u.GetName()] = now
			writes = append(writes, write{version(h, u), u.GetName(), managerOf(u), now})
		}

		if version(h, u) >= lastObject {
			break
		}
	}

	h.objects.Stop()

	return holders, writes
}

func version(t require.TestingT, obj client.Object) int64 {
	v, err := strconv.ParseInt(obj.GetResourceVersion(), 10, 64)
	require.NoError(t, err)

	return v
}

// managerOf returns who wrote the shard label.
func managerOf(u *unstructured.Unstructured) string {
	for _, m := range u.GetManagedFields() {
		if m.FieldsV1 != nil && strings.Contains(string(m.FieldsV1.GetRawBytes()), contract.ShardLabel(ringName)) {
			return m.Manager
		}
	}

	return ""
}

// TestRingPassesBetweenSharders: services and embedded sharders run all the time, while spec.sharder changes again and again, and objects are created
// and lose their shard all the time. Every label is written by the ring's holder, and each time, the other one becomes it.
func TestRingPassesBetweenSharders(t *testing.T) {
	w := newWorld(t, localplane.Shared(t), func(r *v1alpha1.ClusterRing) { r.Spec.Sharder = v1alpha1.SharderServices })
	h := w.record()
	w.join("a", "b")
	w.services()
	w.start(w.options())
	w.start(w.options())

	own := namespace + "/" + contract.SharderLeaseName(ringName)
	created := 0

	for round, to := range []v1alpha1.SharderMode{"", v1alpha1.SharderEmbedded, v1alpha1.SharderServices, v1alpha1.SharderEmbedded, v1alpha1.SharderServices} {
		if to != "" {
			w.setSharder(to)
		}

		// Some of them arrive at the old sharder, some at nobody, and some at the new one.
		for range 30 {
			w.create(fmt.Sprintf("site-%d", created))
			created++
		}

		for i := range created {
			w.waitAt(fmt.Sprintf("site-%d", i), "a", "b")
		}

		require.Eventually(t, func() bool {
			ring := w.ring()
			value, said := ring.Annotations[contract.AnnotationSharder]

			return said == (to == v1alpha1.SharderEmbedded) && (!said || value == own) && meta.IsStatusConditionTrue(ring.Status.Conditions, v1alpha1.ConditionAssigned)
		}, patience, interval, "round %d: %+v", round, w.ring())
	}

	// The last write ends the recording.
	last := w.create("last")
	w.waitAt("last", "a", "b")
	require.NoError(t, w.client.Get(t.Context(), client.ObjectKeyFromObject(last), last))

	holders, writes := h.end(version(t, w.ring()), version(t, last))
	require.Greater(t, len(writes), created)

	var order []string
	for _, held := range holders {
		order = append(order, held.by)
	}

	none := contract.SharderNobody
	require.Equal(t, []string{"services", none, own, none, "services", none, own, none, "services"}, order)

	for _, label := range writes {
		if label.by == "" {
			continue // an object that was created, or deleted
		}

		i := len(holders) - 1
		for holders[i].version > label.version {
			i--
		}

		want := "rebalancer"
		if holders[i].by == own {
			want = contract.SharderLeaseName(ringName)
		}

		require.NotEqual(t, none, holders[i].by, "%+v", label)
		require.Equal(t, want, label.by, "%+v", label)
	}
}

// TestServicesTakeTheRingOfDeadShards: the services wait for the election Lease to run out.
func TestServicesTakeTheRingOfDeadShards(t *testing.T) {
	own := namespace + "/" + contract.SharderLeaseName(ringName)
	w := newWorld(t, localplane.Shared(t), func(r *v1alpha1.ClusterRing) {
		r.Spec.Sharder = v1alpha1.SharderServices
		r.Finalizers = []string{contract.FinalizerRebalancer}
		r.Annotations = map[string]string{contract.AnnotationSharder: own}
	})
	w.join("a")

	now := metav1.NowMicro()
	elected := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: contract.SharderLeaseName(ringName)}}
	elected.Spec = coordinationv1.LeaseSpec{HolderIdentity: new("gone"), LeaseDurationSeconds: new(int32(3)), RenewTime: &now, AcquireTime: &now}
	require.NoError(t, w.client.Create(t.Context(), elected))

	w.create("site")
	w.services()
	w.waitAt("site", "a")
	require.NotContains(t, w.ring().Annotations, contract.AnnotationSharder)
}

// TestRingWaitsForServicesThatAreGone: an embedded sharder cannot know that the services no longer run. An administrator says so.
func TestRingWaitsForServicesThatAreGone(t *testing.T) {
	w := newWorld(t, localplane.Shared(t), func(r *v1alpha1.ClusterRing) { r.Finalizers = []string{contract.FinalizerRebalancer} })
	w.join("a")
	w.create("site")
	w.start(w.options())

	require.Eventually(t, func() bool { return w.ring().Status.Shards == 1 }, patience, interval, "the Leases are monitored")
	require.Empty(t, w.shardOf("site"))

	nobody := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"`+contract.AnnotationSharder+`":"`+contract.SharderNobody+`"}}}`))
	require.NoError(t, w.client.Patch(t.Context(), w.ring(), nobody))
	w.waitAt("site", "a")
}

// TestDeletedRingStaysWithItsSharder: it removes all labels, whatever spec.sharder says by then.
func TestDeletedRingStaysWithItsSharder(t *testing.T) {
	w := newWorld(t, localplane.Shared(t))
	s := w.shard("a", time.Hour)
	w.create("site")
	w.start(w.options())
	w.waitAt("site", "a")
	require.NoError(t, s.Release(t.Context()))
	require.NoError(t, w.client.Delete(t.Context(), w.ring()))
	w.waitAt("site", "")
	require.Eventually(t, func() bool {
		return apierrors.IsNotFound(w.client.Get(t.Context(), types.NamespacedName{Name: ringName}, &v1alpha1.ClusterRing{}))
	}, patience, interval)
}
