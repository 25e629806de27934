package command_test

import (
	"context"
	"encoding/json"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/advise"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/command"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

// again is how soon a reconciled object is reconciled again.
const again = 10 * time.Millisecond

// subject is a controller under load.
type subject struct {
	name    string
	objects int
	workers int
	qps     float32
	// work is one reconcile. It may read with the client of the controller, which has no cache.
	work func(ctx context.Context, live client.Reader, req reconcile.Request) (reconcile.Result, error)
	// warm is the number of reconciles before the advice.
	warm int64
}

// start runs the controller in a manager until the test ends, and returns the address of its metrics.
func (s subject) start(t *testing.T) (address string) {
	t.Helper()
	plane := localplane.Shared(t)
	address, namespace := localplane.FreeAddress(t), plane.Namespace(t)

	for i := range s.objects {
		require.NoError(t, plane.Client.Create(t.Context(),
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprint("object-", i)}}))
	}

	config := rest.CopyConfig(plane.Config)
	config.QPS, config.Burst = s.qps, 1
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Metrics: metricsserver.Options{BindAddress: address},
		Cache:   cache.Options{DefaultNamespaces: map[string]cache.Config{namespace: {}}},
	})
	require.NoError(t, err)

	var reconciles atomic.Int64

	err = ctrl.NewControllerManagedBy(mgr).Named(s.name).For(&corev1.ConfigMap{}).
		WithOptions(controller.Options{MaxConcurrentReconciles: s.workers}).
		Complete(reconcile.Func(func(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
			defer reconciles.Add(1)
			return s.work(ctx, mgr.GetAPIReader(), req)
		}))
	require.NoError(t, err)

	begin(t, mgr)
	require.Eventually(t, func() bool { return reconciles.Load() >= s.warm }, soon, tick)

	return address
}

// advice runs advise in real time, and returns the report in JSON, and the exit code.
func advice(t *testing.T, args ...string) (advise.Report, int) {
	t.Helper()
	p := newProgram(t)

	code := command.Run(t.Context(), append([]string{"advise", "-o", "json"}, args...), command.Streams{
		Out: &p.out, Err: &p.err, Getenv: func(string) string { return "" }, Clock: clock.RealClock{},
	})

	var report advise.Report
	require.NoError(t, json.Unmarshal([]byte(p.out.String()), &report), p.err.String())

	return report, code
}

func of(t *testing.T, report advise.Report, name string) advise.Controller {
	t.Helper()

	for _, c := range report.Controllers {
		if c.Name == name {
			return c
		}
	}
	require.Fail(t, "no such controller", name)

	return advise.Controller{}
}

// TestAdviceAboutRealControllers runs controllers of controller-runtime against the real API server, under loads with a
// known bottleneck.
func TestAdviceAboutRealControllers(t *testing.T) {
	metrics.RegisterRESTClientMetrics(metrics.MetricRateLimiterLatency, metrics.MetricRequestLatency)

	t.Run("workers", func(t *testing.T) {
		const objects = 20

		// A pause takes longer on a busy machine.
		var worked, times atomic.Int64

		address := subject{
			name: "slow", objects: objects, workers: 1, qps: -1, warm: 5,
			work: func(ctx context.Context, _ client.Reader, _ reconcile.Request) (reconcile.Result, error) {
				began := clock.RealClock{}.Now()

				select {
				case <-clock.RealClock{}.After(50 * time.Millisecond):
				case <-ctx.Done():
				}

				worked.Add(int64(clock.RealClock{}.Since(began)))
				times.Add(1)

				return reconcile.Result{RequeueAfter: again}, nil
			},
		}.start(t)

		report, code := advice(t, "--metrics", "http://"+address, "--for", "10s", "--target-p99", "500ms")
		c := of(t, report, "slow")
		require.Equal(t, advise.Workers, c.Verdict, c.Reason)
		require.Equal(t, command.Problem, code)

		mean := time.Duration(worked.Load() / times.Load()).Seconds()

		require.InDelta(t, 1, c.Busy, 0.2)
		require.InEpsilon(t, mean, c.ReconcileMeanSeconds, 0.2)
		require.InEpsilon(t, (objects-1)*mean, c.QueueP50Seconds, 0.3,
			"it waits for the other objects, and native histograms are read")
	})

	t.Run("client", func(t *testing.T) {
		address := subject{
			name: "limited", objects: 4, workers: 2, qps: 5, warm: 2,
			work: func(ctx context.Context, live client.Reader, req reconcile.Request) (reconcile.Result, error) {
				err := live.Get(ctx, req.NamespacedName, &corev1.ConfigMap{})
				return reconcile.Result{RequeueAfter: again}, err
			},
		}.start(t)

		report, code := advice(t, "--metrics", "http://"+address, "--for", "10s", "--target-p99", "500ms")
		c := of(t, report, "limited")
		require.Equal(t, advise.Limited, c.Verdict, c.Reason)
		require.Equal(t, command.Problem, code)
		require.InDelta(t, 5, c.RequestsPerSecond, 2)
	})
}

// begin starts a manager, which ends with the test.
func begin(t *testing.T, mgr manager.Runnable) {
	t.Helper()

	ctx, stop := context.WithCancel(context.Background()) //nolint:usetesting // it ends in a cleanup, after which the manager is waited for
	done := make(chan error, 1)

	go func() { done <- mgr.Start(ctx) }()

	t.Cleanup(func() {
		stop()
		require.NoError(t, <-done)
	})
}
