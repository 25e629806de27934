package leasemonitor

import (
	"maps"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/clusterring"
	"github.com/clusterring/clusterring/services/internal/kit"
	"github.com/clusterring/clusterring/services/leasemonitor/parameters"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

// TestParameterOfAFence shows how a fence gets to know its ring, whatever others do to what it knows.
func TestParameterOfAFence(t *testing.T) {
	w := newWorld(t)
	stop := run(t, "--kubeconfig", w.plane.ServiceKubeconfig(t, name), "--metrics-bind-address", localplane.FreeAddress(t),
		"--health-probe-bind-address", localplane.FreeAddress(t))
	key := client.ObjectKey{Name: contract.FenceName(w.ring)}

	parameter := func() *v1alpha1.PolicyParameter {
		m := &v1alpha1.PolicyParameter{}
		require.NoError(t, client.IgnoreNotFound(w.plane.Client.Get(t.Context(), key, m)))

		return m
	}
	ring := func() *v1alpha1.ClusterRing {
		r := &v1alpha1.ClusterRing{}
		require.NoError(t, w.plane.Client.Get(t.Context(), client.ObjectKey{Name: w.ring}, r))

		return r
	}
	update := func(change func(*v1alpha1.ClusterRing)) {
		r := ring()
		before := r.DeepCopy()
		change(r)
		require.NoError(t, w.plane.Client.Patch(t.Context(), r, client.MergeFrom(before)))
	}

	var holders []v1alpha1.ShardHolder

	right := func(because string) {
		t.Helper()
		require.Eventually(t, func() bool {
			got, r := parameter(), ring()

			return got.Labels[contract.LabelClusterRing] == w.ring && len(got.OwnerReferences) == 1 && got.OwnerReferences[0].UID == r.UID &&
				maps.Equal(got.Data, clusterring.FenceParameter(r, holders).Data)
		}, patience, interval, because)
	}

	w.waitShards(0, 0)
	require.Empty(t, parameter().Name, "a ring without a fence needs none")

	update(func(r *v1alpha1.ClusterRing) {
		r.Spec.Fence = &v1alpha1.Fence{Mode: v1alpha1.FenceEnforce, ServiceAccounts: []v1alpha1.ServiceAccountReference{{Namespace: w.ns, Name: "controller"}}}
	})
	right("it is created")

	shard, _ := w.join("slot-0", patience)
	l := w.lease(shard.Name)
	before := l.DeepCopy()
	l.Annotations = map[string]string{contract.AnnotationPod: "pod-x"}
	require.NoError(t, w.plane.Client.Patch(t.Context(), l, client.MergeFrom(before)))

	holders = []v1alpha1.ShardHolder{{Shard: "slot-0", Pod: "pod-x"}}
	right("it names the Pods of shards")

	for what, change := range map[string]func(*v1alpha1.PolicyParameter){
		"an account": func(m *v1alpha1.PolicyParameter) { m.Data["accounts"] += "\nsomebody" },
		"a holder":   func(m *v1alpha1.PolicyParameter) { m.Data["holder.slot-1"] = "stranger" },
		"the rest": func(m *v1alpha1.PolicyParameter) {
			m.Data, m.OwnerReferences = nil, nil
		},
		"the label": func(m *v1alpha1.PolicyParameter) {
			m.Labels, m.Data = nil, map[string]string{"holder.slot-0": "stranger"}
		},
	} {
		edited := parameter()
		change(edited)
		require.NoError(t, w.plane.Client.Update(t.Context(), edited))
		right("it is restored after an edit of " + what)
	}

	require.NoError(t, w.plane.Client.Delete(t.Context(), parameter()))
	right("it is restored after its deletion")

	update(func(r *v1alpha1.ClusterRing) { r.Finalizers = []string{contract.FinalizerRebalancer} })
	require.NoError(t, w.plane.Client.Delete(t.Context(), ring()))
	require.Eventually(t, func() bool { return parameter().Data["deleting"] == "true" }, patience, interval, "a ring that is being deleted keeps it")

	update(func(r *v1alpha1.ClusterRing) { r.Spec.Fence = nil })
	require.Eventually(t, func() bool { return parameter().Name == "" }, patience, interval, "a ring whose fence is gone needs none")
	update(func(r *v1alpha1.ClusterRing) { r.Finalizers = nil })
	require.NoError(t, stop())
}

// TestStatusDoesNotChangeAFence: whoever writes the status of a ring does not decide who may write its objects. The Leases say which Pod runs which shard.
func TestStatusDoesNotChangeAFence(t *testing.T) {
	w := newWorld(t)
	c := w.plane.Client
	ring := &v1alpha1.ClusterRing{}
	require.NoError(t, c.Get(t.Context(), client.ObjectKey{Name: w.ring}, ring))

	ring.Spec.Fence = &v1alpha1.Fence{Mode: v1alpha1.FenceEnforce, ServiceAccounts: []v1alpha1.ServiceAccountReference{{Namespace: w.ns, Name: "controller"}}}
	require.NoError(t, c.Update(t.Context(), ring))

	ring.Status.Holders = []v1alpha1.ShardHolder{{Shard: "slot-0", Pod: "thief"}, {Shard: "slot-1", Pod: "thief"}}
	require.NoError(t, c.Status().Update(t.Context(), ring))

	shard, _ := w.join("slot-0", patience)
	l := w.lease(shard.Name)
	before := l.DeepCopy()
	l.Annotations = map[string]string{contract.AnnotationPod: "pod-x"}
	require.NoError(t, c.Patch(t.Context(), l, client.MergeFrom(before)))

	fences := &parameters.Fences{Writer: parameters.Writer{Client: c, Restores: kit.NewRestores(clock.RealClock{})}}
	_, err := fences.Reconcile(t.Context(), clusterring.Request(w.ring))
	require.NoError(t, err)

	parameter := &v1alpha1.PolicyParameter{}
	require.NoError(t, c.Get(t.Context(), client.ObjectKey{Name: contract.FenceName(w.ring)}, parameter))
	require.Equal(t, clusterring.FenceParameter(ring, []v1alpha1.ShardHolder{{Shard: "slot-0", Pod: "pod-x"}}).Data, parameter.Data)
}

// TestParameterOfADeletedRing removes what the garbage collector cannot, because the ring's kind may be gone.
func TestParameterOfADeletedRing(t *testing.T) {
	w := newWorld(t)
	left := &v1alpha1.PolicyParameter{}
	left.Name, left.Labels = contract.FenceName("gone-"+w.ns), map[string]string{contract.LabelClusterRing: "gone-" + w.ns}
	require.NoError(t, w.plane.Client.Create(t.Context(), left))

	stop := run(t, "--kubeconfig", w.plane.ServiceKubeconfig(t, name), "--metrics-bind-address", localplane.FreeAddress(t),
		"--health-probe-bind-address", localplane.FreeAddress(t))

	require.Eventually(t, func() bool {
		return apierrors.IsNotFound(w.plane.Client.Get(t.Context(), client.ObjectKeyFromObject(left), &v1alpha1.PolicyParameter{}))
	}, patience, interval)
	require.NoError(t, stop())
}
