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
	rbacv1 "k8s.io/api/rbac/v1"
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
	"github.com/clusterring/clusterring/tools/testkit/leasetest"
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
			"--kubeconfig=" + w.plane.ServiceKubeconfig(w,
				name), "--metrics-bind-address=0", "--health-probe-bind-address=0", "--log-format=text",
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

// end returns who held the ring from which resource version on, and the writes of labels by sharders, up to the given
// last versions.
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

// TestRingPassesBetweenSharders: services and embedded sharders run all the time, while spec.sharder changes again and
// again, and objects are created and lose their shard all the time. Every label is written by the ring's holder, and
// each time, the other one becomes it.
func TestRingPassesBetweenSharders(t *testing.T) {
	w := newWorld(t, localplane.Shared(t), func(r *v1alpha1.ClusterRing) { r.Spec.Sharder = v1alpha1.SharderServices })
	h := w.record()
	w.join("a", "b")
	w.services()
	w.start(w.options())
	w.start(w.options())

	own := namespace + "/" + contract.SharderLeaseName(ringName)
	created := 0

	for round, to := range []v1alpha1.SharderMode{"", v1alpha1.SharderEmbedded, v1alpha1.SharderServices,
		v1alpha1.SharderEmbedded, v1alpha1.SharderServices} {
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

			return said == (to == v1alpha1.SharderEmbedded) && (!said || value == own) &&
				meta.IsStatusConditionTrue(ring.Status.Conditions, v1alpha1.ConditionAssigned)
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

// TestLabelOfTheRing: a ring with a label of its own is sharded once its shards have the permissions that this takes.
func TestLabelOfTheRing(t *testing.T) {
	const label = "cloudapi.example.com/shard"

	w := newWorld(t, localplane.Shared(t), func(ring *v1alpha1.ClusterRing) { ring.Spec.ShardLabel = label })
	s := &leasetest.Shard{Client: w.client, Ring: ringName, Namespace: namespace, Name: "a", Duration: longest,
		ShardLabel: label}
	require.NoError(t, s.Acquire(t.Context()))
	w.create("site")
	w.start(w.options())

	lacks := func(permission string) {
		t.Helper()
		require.Eventually(t, func() bool {
			c := meta.FindStatusCondition(w.ring().Status.Conditions, v1alpha1.ConditionAssigned)

			return c != nil && strings.Contains(c.Message, permission)
		}, patience, interval, "the condition names the permission")
	}

	lacks("may not list clusterrings")
	w.grant("example-ring-list", rbacv1.PolicyRule{
		APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{"clusterrings"}, Verbs: []string{"list"},
	})
	lacks("may not write the label " + label)
	w.grant("example-shard-label", rbacv1.PolicyRule{
		APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{contract.ResourceShardLabels},
		ResourceNames: []string{label}, Verbs: []string{"write"},
	})
	require.Eventually(t, func() bool {
		u := website("site", w.objects)
		require.NoError(t, w.client.Get(t.Context(), client.ObjectKeyFromObject(u), u))

		return u.GetLabels()[label] == "a"
	}, patience, interval, "the object gets a shard")
}

// grant gives the shards one more right, in a ClusterRole of this name.
func (w *world) grant(name string, right rbacv1.PolicyRule) {
	w.Helper()

	meta := metav1.ObjectMeta{Name: name}
	role := &rbacv1.ClusterRole{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{right}}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: meta.Name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: "example-shard"}},
	}

	for _, obj := range []client.Object{role, binding} {
		require.NoError(w, w.client.Create(w.Context(), obj))
		w.Cleanup(func() { require.NoError(w, w.client.Delete(context.Background(), obj)) })
	}
}
