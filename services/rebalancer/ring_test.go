package rebalancer

import (
	"context"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/rebalancer/ringtest"
	"github.com/clusterring/clusterring/tools/lab/localplane"
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
