package kit_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/kit"
	"github.com/clusterring/clusterring/services/internal/leases"
	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
	"github.com/clusterring/clusterring/tools/testkit/output"
)

// asService, set in the environment, makes the test binary a service: signals and exit codes need a process.
const asService = "KIT_TEST_AS_SERVICE"

func TestMain(m *testing.M) {
	if os.Getenv(asService) != "" {
		os.Exit(kit.Main(kit.NewCommand(kit.Service{Name: service, LeaderElection: true, Setup: watch})))
	}
	os.Exit(localplane.Main(m, v1alpha1.AddToScheme))
}

const (
	// service is a name whose service account has the rights that the tests need.
	service = "leasemonitor"
	// soon bounds what takes a moment, also on a loaded machine.
	soon = 30 * time.Second
	tick = 20 * time.Millisecond
)

// watch is the least that a service does.
func watch(ctx context.Context, rt *kit.Runtime) error {
	_, err := leases.Watch(ctx, rt.Manager, rt.AddReady, membership.NewIndex())
	return err
}

func nothing(context.Context, *kit.Runtime) error { return nil }

// instance is a service that runs in this process.
type instance struct {
	health, metrics string
	out             *output.Buffer
	cancel          context.CancelFunc
	done            chan error
}

// start runs the command of s. The test has to wait for its end.
func start(t *testing.T, s kit.Service, args ...string) *instance {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	i := &instance{health: localplane.FreeAddress(t), metrics: localplane.FreeAddress(t), out: &output.Buffer{},
		cancel: cancel, done: make(chan error, 1)}
	cmd := kit.NewCommand(s)
	cmd.SetOut(i.out)
	cmd.SetErr(i.out)

	cmd.SetArgs(append([]string{"--health-probe-bind-address=" + i.health, "--metrics-bind-address=" + i.metrics},
		args...))
	go func() { i.done <- cmd.ExecuteContext(ctx) }()
	t.Cleanup(cancel)

	return i
}

// stop tells the service to stop and returns how it ended.
func (i *instance) stop(t *testing.T) error {
	t.Helper()
	i.cancel()

	return i.wait(t)
}

func (i *instance) wait(t *testing.T) error {
	t.Helper()
	return receive(t, i.done, "end of the service")
}

func (i *instance) ended() bool { return len(i.done) > 0 }

// waitReady waits until the service reports that it is ready.
func (i *instance) waitReady(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool {
		require.Falsef(t, i.ended(), "the service ended: %s", i.out)
		code, _ := get("http://" + i.health + "/readyz")

		return code == http.StatusOK
	}, soon, tick)
}

// get returns the status and body of a page, and 0 where nobody answers.
func get(url string) (int, string) {
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()

	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return 0, err.Error()
	}

	response, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(request)
	if err != nil {
		return 0, err.Error()
	}

	body, err := io.ReadAll(response.Body)

	return response.StatusCode, fmt.Sprint(string(body), errors.Join(err, response.Body.Close()))
}

func receive[T any](t *testing.T, ch <-chan T, what string) T {
	t.Helper()

	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()

	select {
	case v := <-ch:
		return v
	case <-ctx.Done():
		require.Failf(t, "timeout", "waited for: %s", what)
		panic("unreachable")
	}
}

// kubeconfig returns the flag with which a test service runs under its own rights.
func kubeconfig(t *testing.T) string {
	t.Helper()
	return "--kubeconfig=" + localplane.Shared(t).ServiceKubeconfig(t, service)
}

// runMain runs the command as a binary would, and returns the exit code and what it printed.
func runMain(s kit.Service, args ...string) (code int, stdout, stderr string) {
	var out, errOut output.Buffer

	cmd := kit.NewCommand(s)
	cmd.SetOut(&out)
	cmd.SetErr(&errOut)
	cmd.SetArgs(args)
	code = kit.Main(cmd)

	return code, out.String(), errOut.String()
}

// worker is a runnable of the leader that tells when it works, and goes on after the stop until it is let go.
type worker struct {
	working, told chan struct{}
	hold          chan struct{}
	letGo         func()
}

func newWorker(t *testing.T) *worker {
	t.Helper()

	w := &worker{working: make(chan struct{}), told: make(chan struct{}), hold: make(chan struct{})}
	w.letGo = sync.OnceFunc(func() { close(w.hold) })
	t.Cleanup(w.letGo)

	return w
}

func (w *worker) service() kit.Service {
	return kit.Service{Name: service, LeaderElection: true, Setup: func(_ context.Context, rt *kit.Runtime) error {
		return rt.Manager.Add(manager.RunnableFunc(func(ctx context.Context) error {
			close(w.working)
			<-ctx.Done()
			close(w.told)
			<-w.hold

			return nil
		}))
	}}
}

// TestNotReadyBeforeCachesAreFilled runs a service that may not read Leases yet.
func TestNotReadyBeforeCachesAreFilled(t *testing.T) {
	p := localplane.Shared(t)
	account := metav1.ObjectMeta{Namespace: p.Namespace(t), Name: "newcomer"}
	require.NoError(t, p.Client.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: account}))
	path, err := p.ServiceAccountKubeconfig(t.Context(), account.Namespace, account.Name)
	require.NoError(t, err)

	i := start(t, kit.Service{Name: service, Setup: watch}, "--kubeconfig="+path)
	require.Eventually(t, func() bool {
		code, body := get("http://" + i.health + "/readyz?verbose")
		if code == 0 {
			return false
		}
		require.Equal(t, http.StatusInternalServerError, code)
		require.Contains(t, body, "[-]caches failed")
		require.Contains(t, body, "[-]shard-leases failed")
		require.Contains(t, body, "[+]draining ok")

		return true
	}, soon, tick)

	code, _ := get("http://" + i.health + "/healthz")
	require.Equal(t, http.StatusOK, code, "it lives")

	require.NoError(t, p.Client.Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: account.Namespace},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "clusterring:ringquery"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: account.Namespace, Name: account.Name}},
	}))
	i.waitReady(t)
	require.NoError(t, i.stop(t))
}

// TestNotReadyWhileDraining: once told to stop, a service is not ready, but goes on serving for the shutdown delay.
func TestNotReadyWhileDraining(t *testing.T) {
	draining := make(chan (<-chan struct{}), 1)
	finish := make(chan struct{})
	s := kit.Service{Name: service, LeaderElection: true, Setup: func(_ context.Context, rt *kit.Runtime) error {
		draining <- rt.Draining()

		return rt.Manager.Add(manager.RunnableFunc(func(ctx context.Context) error {
			select {
			case <-finish:
				return errors.New("enough")
			case <-ctx.Done():
				return errors.New("stopped although the delay is not over")
			}
		}))
	}}
	pprof := localplane.FreeAddress(t)
	i := start(t, s, kubeconfig(t), "--leader-elect=false", "--shutdown-delay=1h", "--pprof-bind-address="+pprof)
	i.waitReady(t)
	told := receive(t, draining, "setup")
	require.Empty(t, told)

	i.cancel()
	receive(t, told, "draining")

	code, body := get("http://" + i.health + "/readyz")
	require.Equal(t, http.StatusInternalServerError, code)
	require.Contains(t, body, "[-]draining failed")

	code, body = get("http://" + i.metrics + "/metrics")
	require.Equal(t, http.StatusOK, code, "still serving")
	require.Regexp(t,
		`(?m)^clusterring_build_info\{go_version="go1\.[^"]+",service="leasemonitor",version="dev"\} 1$`, body)

	code, _ = get("http://" + pprof + "/debug/pprof/cmdline")
	require.Equal(t, http.StatusOK, code)
	require.False(t, i.ended())

	close(finish)
	require.EqualError(t, i.wait(t), "run leasemonitor: enough")
}

// TestFailingRunnableStopsTheService: nothing goes on half alive.
func TestFailingRunnableStopsTheService(t *testing.T) {
	s := kit.Service{Name: service, Setup: func(_ context.Context, rt *kit.Runtime) error {
		return rt.Manager.Add(manager.RunnableFunc(func(context.Context) error { return errors.New("disk on fire") }))
	}}
	i := start(t, s, kubeconfig(t))
	require.EqualError(t, i.wait(t), "run leasemonitor: disk on fire")
}

// TestHandOver: the next leader works as soon as, and not before, the last worker of the former has returned.
func TestHandOver(t *testing.T) {
	dropLeaderLease(t)
	slow := []string{kubeconfig(t), "--leader-elect-lease-duration=1h", "--leader-elect-retry-period=100ms",
		"--leader-elect-renew-deadline=30s"}
	first, second := newWorker(t), newWorker(t)
	leader := start(t, first.service(), slow...)
	receive(t, first.working, "first leader")
	standby := start(t, second.service(), slow...)
	standby.waitReady(t)
	require.NotEmpty(t, leaderLease(t))

	leader.cancel()
	receive(t, first.told, "stop of the worker")

	code, _ := get("http://" + leader.health + "/readyz")
	require.Equal(t, http.StatusInternalServerError, code)
	holder := leaderLease(t)
	require.NotEmpty(t, holder, "the Lease is held while a worker runs")
	require.False(t, leader.ended())
	require.Empty(t, second.working)

	first.letGo()
	require.NoError(t, leader.wait(t))
	receive(t, second.working, "second leader, long before the Lease expires")
	require.NotEqual(t, holder, leaderLease(t))
	require.NotContains(t, leader.out.String(), `"level":"error"`)

	second.letGo()
	require.NoError(t, standby.stop(t))
	require.Empty(t, leaderLease(t), "released")
}

// TestStuckWorkerKeepsTheLease: a process that cannot stop in time ends without handing its Lease over.
func TestStuckWorkerKeepsTheLease(t *testing.T) {
	dropLeaderLease(t)
	w := newWorker(t)
	i := start(t, w.service(), kubeconfig(t), "--shutdown-grace=100ms")
	receive(t, w.working, "leader")
	require.EqualError(t, i.stop(t), "work still runs 100ms after the stop began (--shutdown-grace); exiting without "+
		"releasing the leader Lease")
	require.NotEmpty(t, leaderLease(t))

	w.letGo() // a process would have ended by now; here its goroutines live on and clean up
	require.Eventually(t, func() bool { return leaderLease(t) == "" }, soon, tick)
}

// TestLostLeadership: when somebody else holds the Lease, the process ends at once, and leaves the Lease alone.
func TestLostLeadership(t *testing.T) {
	dropLeaderLease(t)
	p := localplane.Shared(t)
	w := newWorker(t)
	i := start(t, w.service(), kubeconfig(t), "--leader-elect-retry-period=100ms")
	receive(t, w.working, "leader")
	require.Eventually(t, func() bool {
		lease := getLeaderLease(t)
		lease.Spec.HolderIdentity = new("usurper")
		lease.Spec.LeaseDurationSeconds = ptr.To[int32](1)

		return p.Client.Update(t.Context(), lease) == nil
	}, soon, tick)
	require.EqualError(t, i.wait(t),
		`lost the leader Lease sharding-system/leasemonitor: "usurper" holds it now; exiting immediately, so that no two instances work`)
	require.Equal(t, "usurper", leaderLease(t))
	w.letGo()
}

// dropLeaderLease makes a test independent of how another ended.
func dropLeaderLease(t *testing.T) {
	t.Helper()

	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "sharding-system", Name: service}}
	require.NoError(t, client.IgnoreNotFound(localplane.Shared(t).Client.Delete(t.Context(), lease)))
}

func getLeaderLease(t *testing.T) *coordinationv1.Lease {
	t.Helper()

	lease := &coordinationv1.Lease{}
	require.NoError(t, localplane.Shared(t).Client.Get(t.Context(), client.ObjectKey{Namespace: "sharding-system",
		Name: service}, lease))

	return lease
}

// leaderLease returns the holder.
func leaderLease(t *testing.T) string {
	t.Helper()
	return ptr.Deref(getLeaderLease(t).Spec.HolderIdentity, "")
}

func TestRetriesAreCappedAndSpreadOut(t *testing.T) {
	limiter := kit.RateLimiter[string]()
	require.LessOrEqual(t, limiter.When("a"), 5*time.Millisecond)

	for failing := time.Duration(0); failing < 10*time.Minute; {
		failing += limiter.When("a")
	}

	pauses := map[time.Duration]bool{}

	for range 10 {
		pause := limiter.When("a")
		require.LessOrEqual(t, pause, 30*time.Second)
		require.GreaterOrEqual(t, pause, 24*time.Second)
		pauses[pause] = true
	}
	require.Greater(t, len(pauses), 1, "what failed together is tried together")

	limiter.Forget("a")
	require.LessOrEqual(t, limiter.When("a"), 5*time.Millisecond)
}
