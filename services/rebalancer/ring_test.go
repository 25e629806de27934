package rebalancer

import (
	"context"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/key"
	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/tools/lab/localplane"
	"github.com/clusterring/clusterring/tools/lab/ringtest"
)

// controller-runtime leaves a goroutine for a watch of metadata that ends while there is an event.
func TestMain(m *testing.M) {
	os.Exit(localplane.Main(m, goleak.IgnoreTopFunction("k8s.io/apimachinery/pkg/watch.(*filteredWatch).loop")))
}

// testRing is a ring whose rebalancer runs with the permissions of its service account.
type testRing struct{ *ringtest.Fixture }

func newTestRing(t *testing.T, change ...func(*v1alpha1.ClusterRing)) *testRing {
	t.Helper()

	return &testRing{Fixture: ringtest.New(t, change...)}
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

	return w.Fixture.NamesOf(shard, n, w.ownerIn(w.View()))
}

// ownerIn returns a function that returns the shard of the named ConfigMap in a view.
func (w *testRing) ownerIn(view *membership.View) func(name string) string {
	return func(name string) string {
		shard, ok := view.Owner(key.Key{Kind: "ConfigMap", Namespace: w.Namespace, Name: name})
		require.True(w, ok, "no shard is available")

		return shard
	}
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
