package services_test

import (
	"errors"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/tools/testkit/localplane"
	"github.com/clusterring/clusterring/tools/testkit/services"
)

// TestMain makes this binary play the part of a service, if it gets a service's arguments.
func TestMain(m *testing.M) {
	if health := flagOf(os.Args, "--health-probe-bind-address="); health != "" {
		os.Exit(play(health))
	}
	os.Exit(localplane.Main(m, nil))
}

func flagOf(args []string, name string) string {
	for _, arg := range args {
		if value, is := strings.CutPrefix(arg, name); is {
			return value
		}
	}

	return ""
}

// play serves until it is told to stop, unless it is to fail.
func play(health string) int {
	if slices.Contains(os.Args, "--fail") {
		_, _ = os.Stdout.WriteString("it cannot work here\n")
		return 3
	}

	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)

	server := &http.Server{Addr: health, ReadHeaderTimeout: time.Minute,
		Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})}

	go func() {
		<-signals

		_ = server.Close()
	}()

	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return 1
	}

	return 0
}

// group returns a group whose programs are this one, and the name of that.
func group(t *testing.T) (g *services.Group, binary string) {
	t.Helper()

	self, err := os.Executable()
	require.NoError(t, err)
	g = services.New(services.Options{Plane: localplane.Shared(t), BinDir: filepath.Dir(self), LogDir: t.TempDir(),
		ShownLines: 3, Profile: true})
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		require.NoError(t, g.Stop())
	})

	return g, filepath.Base(self)
}

// spec is a service under the rights of the rebalancer.
func spec(name, binary string, args ...string) services.Spec {
	return services.Spec{Name: name, Binary: binary, Namespace: "sharding-system",
		Account: services.Rebalancer, Args: args}
}

func TestGroup(t *testing.T) {
	g, binary := group(t)
	require.NoError(t, g.Start(t.Context(), spec("one", binary, "--x"), spec("two", binary)))
	require.NoError(t, g.Ready(t.Context(), "one", "two"))
	one := g.Process("one")
	require.Equal(t, "--x", one.Args[len(one.Args)-1])
	require.Equal(t, g.Addresses("one").Metrics, flagOf(one.Args, "--metrics-bind-address="))
	require.Equal(t, g.Addresses("one").Profiles, flagOf(one.Args, "--pprof-bind-address="))
	kubeconfig, err := g.Kubeconfig(t.Context(), "sharding-system", services.Rebalancer)
	require.NoError(t, err)
	require.NotEqual(t, kubeconfig, flagOf(one.Args, "--kubeconfig="))
	require.Equal(t, "sharding-system.rebalancer.one.yaml", filepath.Base(flagOf(one.Args, "--kubeconfig=")),
		"of a Pod with this name")

	require.NoError(t, g.End("one"))
	require.NoError(t, one.Err())
	require.ErrorContains(t, g.Ready(t.Context(), "one", "two"), "one is not ready: no answer yet")
	require.NoError(t, g.Resume(t.Context(), "one"))
	require.NoError(t, g.Restart(t.Context(), "two", "--more"))
	require.Equal(t, "--more", g.Process("two").Args[len(g.Process("two").Args)-1])
	require.NoError(t, g.Ready(t.Context(), "one", "two"))
	require.Len(t, g.Started(), 4)

	require.NoError(t, g.Process("two").Kill())
	require.Empty(t, g.Died(), "it was told to")
	require.ErrorContains(t, g.End("three"), "there is no process three")
	require.ErrorContains(t, g.Restart(t.Context(), "three"), "there is no process three")
}

func TestServiceThatFails(t *testing.T) {
	g, binary := group(t)
	err := g.Start(t.Context(), spec("one", binary, "--fail"))
	require.ErrorContains(t, err, "exit status 3\nit cannot work here")
	require.ErrorContains(t, <-g.Died(), "one has ended by itself: exit status 3\nit cannot work here")
}
