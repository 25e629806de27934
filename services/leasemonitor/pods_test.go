package leasemonitor

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/kubelettest"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

// pod creates a Pod that runs.
func (w *world) pod(name string) *corev1.Pod {
	w.t.Helper()

	p := kubelettest.Pod(w.ns, name)
	require.NoError(w.t, w.plane.Client.Create(w.t.Context(), p))

	return p
}

// ends reports that the Pod has ended, as the kubelet does.
func (w *world) ends(p *corev1.Pod) {
	w.t.Helper()

	p.Status = kubelettest.Ended()
	require.NoError(w.t, w.plane.Client.Status().Update(w.t.Context(), p))
}

// TestServiceBelievesTheKubelet runs the command with --pods. It is granted the namespace of the shards only after it has started, and takes
// a Lease that would count for minutes.
func TestServiceBelievesTheKubelet(t *testing.T) {
	const d = 5 * time.Minute

	w := newWorld(t)
	stop := run(t, "--kubeconfig", w.plane.ServiceKubeconfig(t, name), "--pods",
		"--metrics-bind-address", localplane.FreeAddress(t), "--health-probe-bind-address", localplane.FreeAddress(t))

	pod := w.pod("ends")
	w.uids["ends"], w.uids["stays"] = pod.UID, w.pod("stays").UID
	_, crash := w.join("ends", d)
	w.join("stays", d)
	w.waitShards(2, 2)
	crash()
	w.ends(pod)

	ring := &v1alpha1.ClusterRing{ObjectMeta: metav1.ObjectMeta{Name: w.ring}}
	require.NoError(t, w.plane.Client.Patch(t.Context(), ring,
		client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"shardNamespaces":["`+w.ns+`"]}}`))))
	require.NoError(t, w.plane.Client.Create(t.Context(), kubelettest.Binding(w.ns)))

	w.waitState("ends", "dead")
	w.waitShards(1, 2)
	require.Equal(t, contract.LeaseControllerIdentity, *w.lease("ends").Spec.HolderIdentity)
	require.Eventually(t, func() bool { return w.hasEvent("ShardEnded") }, patience, interval)
	require.Equal(t, "stays", *w.lease("stays").Spec.HolderIdentity)
	require.NoError(t, stop())
}
