package kit_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
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
	i := &instance{health: localplane.FreeAddress(t), metrics: localplane.FreeAddress(t), out: &output.Buffer{}, cancel: cancel, done: make(chan error, 1)}
	cmd := kit.NewCommand(s)
	cmd.SetOut(i.out)
	cmd.SetErr(i.out)

	cmd.SetArgs(append([]string{"--health-probe-bind-address=" + i.health, "--metrics-bind-address=" + i.metrics}, args...))
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

// waitReady waits until the service says that it is ready.
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

func listen(t *testing.T) net.Listener {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)

	return listener
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
