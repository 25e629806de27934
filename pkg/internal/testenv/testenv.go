// Package testenv runs a real API server for the tests of this module.
package testenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

var (
	// A server on loopback starts fast, but not on a machine that also compiles.
	environment = &envtest.Environment{ControlPlaneStartTimeout: 2 * time.Minute, ControlPlaneStopTimeout: 2 * time.Minute}

	start = sync.OnceValues(func() (*rest.Config, error) {
		if os.Getenv("KUBEBUILDER_ASSETS") == "" {
			return nil, errors.New("set KUBEBUILDER_ASSETS to what `make control-plane` prints")
		}

		return environment.Start()
	})
)

// quiet are the tests of a package, without logs of libraries. They stop the API server before goroutines are counted.
type quiet struct{ *testing.M }

func (q quiet) Run() int {
	ctrl.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())

	code := q.M.Run()

	if environment.Config == nil {
		return code // no test has started it
	}

	if err := environment.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, "stop the API server:", err)

		return max(code, 1)
	}

	return code
}

// VerifyMain runs the tests of a package without the logs of libraries, stops the API server if a test has started it,
// and fails if goroutines are left. It ends the process. controller-runtime leaves one for a watch of metadata that
// ends while there is an event.
func VerifyMain(m *testing.M) {
	goleak.VerifyTestMain(quiet{m}, goleak.IgnoreTopFunction("k8s.io/apimachinery/pkg/watch.(*filteredWatch).loop"))
}

// Config returns an administrator's config for the API server that all tests of a package share. It starts the API
// server if necessary. If that fails, so does the test.
func Config(t testing.TB) *rest.Config {
	t.Helper()

	shared, err := start()
	require.NoError(t, err)

	config := rest.CopyConfig(shared)
	config.QPS = -1 // tests poll conditions often

	return config
}

// Client returns an administrator's client that reads from the API server.
func Client(t testing.TB) client.Client {
	t.Helper()
	c, err := client.New(Config(t), client.Options{Scheme: scheme.Scheme})
	require.NoError(t, err)

	return c
}

// Namespace creates a namespace for one test and returns its name. It is not deleted, because nothing would empty it.
func Namespace(t testing.TB) string {
	t.Helper()

	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
	require.NoError(t, Client(t).Create(t.Context(), namespace))

	return namespace.Name
}

// Lease returns a Lease, or an empty one if it does not exist.
func Lease(t testing.TB, c client.Client, key client.ObjectKey) *coordinationv1.Lease {
	t.Helper()

	lease := &coordinationv1.Lease{}
	if err := c.Get(t.Context(), key, lease); !apierrors.IsNotFound(err) {
		require.NoError(t, err)
	}

	return lease
}

// Receive returns what the channel yields within a time, or fails the test. It also works while the test cleans up,
// when the context of the test has ended. Call it from the goroutine of the test.
func Receive[T any](t testing.TB, within time.Duration, from <-chan T, what string) T {
	t.Helper()

	ctx, cancel := context.WithTimeout(context.Background(), within) //nolint:usetesting // see above
	defer cancel()

	select {
	case value := <-from:
		return value
	case <-ctx.Done():
		require.Fail(t, "nothing happens", what)
		panic("unreachable")
	}
}
