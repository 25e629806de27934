package rebalancer

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/key"
	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
	"github.com/clusterring/clusterring/tools/testkit/ringtest"
)

// controller-runtime leaves a goroutine for a watch of metadata that ends while there is an event.
func TestMain(m *testing.M) {
	os.Exit(localplane.Main(m, v1alpha1.AddToScheme, goleak.IgnoreTopFunction("k8s.io/apimachinery/pkg/watch.(*filteredWatch).loop")))
}

// clusterRings is what a ring is.
var clusterRings = ringtest.Kind[*v1alpha1.ClusterRing]{
	New: func(name string, namespaces map[string]string) *v1alpha1.ClusterRing {
		return &v1alpha1.ClusterRing{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.ClusterRingSpec{
			Resources: []v1alpha1.RingResource{{
				Resource: "configmaps", ControlledResources: []v1alpha1.ControlledResource{{Resource: "secrets"}},
			}},
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: namespaces},
		}}
	},
	Labels:     func(r *v1alpha1.ClusterRing) (shard, drain string) { return r.LabelKeys().Shard, r.LabelKeys().Drain },
	Announced:  func(r *v1alpha1.ClusterRing) string { return r.Spec.ShardLabel },
	Conditions: func(r *v1alpha1.ClusterRing) []metav1.Condition { return r.Status.Conditions },
}

type fixture = ringtest.Fixture[*v1alpha1.ClusterRing]

// testRing is a ring whose rebalancer runs with the permissions of its service account.
type testRing struct{ *fixture }

func newTestRing(t *testing.T, change ...func(*v1alpha1.ClusterRing)) *testRing {
	t.Helper()

	return &testRing{ringtest.New(t, clusterRings, change...)}
}

// View returns the view of the ring's current Leases.
func (w *testRing) View() *membership.View {
	w.Helper()

	return membership.RulesOf(w.Ring).View(w.Ring.Name, w.Leases(), nil)
}

// Owner returns the shard that owns the key of the named ConfigMap.
func (w *testRing) Owner(name string) string {
	w.Helper()

	return w.ownerIn(w.View())(name)
}

// NamesOf returns n names of ConfigMaps whose keys the shard currently owns.
func (w *testRing) NamesOf(shard string, n int) []string {
	w.Helper()

	return w.fixture.NamesOf(shard, n, w.ownerIn(w.View()))
}

// ownerIn returns a function that returns the shard of the named ConfigMap in a view.
func (w *testRing) ownerIn(view *membership.View) func(name string) string {
	return func(name string) string {
		shard, ok := view.Owner(key.Key{Kind: "ConfigMap", Namespace: w.Namespace, Name: name})
		require.True(w, ok, "no shard is available")

		return shard
	}
}

// Converged waits until the status of the ring reports that every object is at its shard among those of the fingerprint.
func (w *testRing) Converged(fingerprint string) {
	w.Helper()

	require.Eventually(w, func() bool {
		require.NoError(w, w.Client.Get(w.Context(), client.ObjectKeyFromObject(w.Ring), w.Ring))

		return w.Ring.Status.Assignment != nil && w.Ring.Status.Assignment.Fingerprint == fingerprint
	}, 30*time.Second, 20*time.Millisecond, "the ring should converge: %+v", w.Ring.Status)
}

// AtRest waits until the ring has converged for the current shards.
func (w *testRing) AtRest() {
	w.Helper()
	w.Converged(w.View().Fingerprint())
}

// start runs the rebalancer until the test ends or stop is called.
func (w *testRing) start(args ...string) (stop func()) {
	w.Helper()

	cmd := NewCommand()
	cmd.SetArgs(append([]string{
		"--kubeconfig", w.Plane.ServiceKubeconfig(w, name), "--leader-elect=false", "--settle-period=100ms",
		"--metrics-bind-address=0", "--health-probe-bind-address=0", "--log-level=error",
	}, args...))

	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)

	go func() { ended <- cmd.ExecuteContext(ctx) }()

	running := true
	stop = func() {
		if running {
			running = false

			cancel()
			require.NoError(w, <-ended)
		}
	}

	w.Cleanup(stop)

	return stop
}
