//go:build unix

package shard

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// order is an instruction of a test to a shard's process.
type order struct {
	Host          string
	TLS           rest.TLSClientConfig
	Ring, Name    string
	LeaseDuration time.Duration
	Deaf          bool // workers ignore their contexts
	// Poison is the name of objects whose reconcile ends the process; empty: none does. All others are reported.
	Poison string
}

func init() { asProcess = runAsProcess }

// poisoned is the exit code of a process that a reconcile has ended.
const poisoned = 3

// runAsProcess is the main function of an ordinary controller with one worker, which reports each of its steps. It
// returns the exit code.
func runAsProcess() int {
	var o order
	if err := json.Unmarshal([]byte(os.Getenv(processVariable)), &o); err != nil {
		panic(err)
	}

	config := &rest.Config{Host: o.Host, TLSClientConfig: o.TLS}

	mgr, err := NewManager(config, manager.Options{Metrics: metricsserver.Options{BindAddress: "0"}}, Options{
		Ring: o.Ring, Name: o.Name, Namespace: o.Ring,
		LeaseDuration: o.LeaseDuration, RenewDeadline: 2 * time.Second, RetryPeriod: 200 * time.Millisecond,
		HoldOff: minHoldOff,
		Kinds:   Kinds{Main(&corev1.ConfigMap{})},
	})
	if err != nil {
		panic(err)
	}

	worker := reconcile.Func(func(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
		if o.Poison != "" {
			tell(req.Name)

			if req.Name == o.Poison {
				os.Exit(poisoned) //nolint:revive // this is what it is about
			}

			return reconcile.Result{}, nil
		}

		tell("begin")

		for o.Deaf {
			<-context.Background().Done()
		}
		<-ctx.Done()
		tell("cancelled")

		return reconcile.Result{}, nil
	})

	err = ctrl.NewControllerManagedBy(mgr).For(&corev1.ConfigMap{}).Complete(worker)
	if err != nil {
		panic(err)
	}

	if err := mgr.Start(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)

		return 2
	}

	return 0
}

func tell(what string) { fmt.Fprintln(os.Stdout, what) }

// frozen starts a process, freezes it inside a reconcile until its Lease is older than the given time, and wakes it. It
// returns what the process has reported since, its standard error, and its exit code.
func (f *fixture) frozen(o order, age time.Duration) (told []string, stderr string, code int) {
	f.Helper()
	o.Host, o.TLS, o.Ring, o.Name = f.config.Host, f.config.TLSClientConfig, f.ring, "shard-0"
	raw, err := json.Marshal(o)
	require.NoError(f, err)
	s := f.shard(o.Name)
	f.configMap(s, "a")
	f.configMap(s, "b")

	ctx, cancel := context.WithTimeout(f.Context(), 2*patience)
	defer cancel()

	cmd := exec.CommandContext(ctx, os.Args[0])

	cmd.Env = append(os.Environ(), processVariable+"="+string(raw))

	var errors bytes.Buffer

	cmd.Stderr = &errors
	out, err := cmd.StdoutPipe()
	require.NoError(f, err)
	require.NoError(f, cmd.Start())

	lines := bufio.NewScanner(out)
	require.True(f, lines.Scan(), "the first reconcile begins")

	require.NoError(f, cmd.Process.Signal(syscall.SIGSTOP))
	f.eventually("the Lease gets old", func() bool {
		return clock.RealClock{}.Since(f.lease(s).Spec.RenewTime.Time) > age
	})
	require.NoError(f, cmd.Process.Signal(syscall.SIGCONT))

	for lines.Scan() {
		told = append(told, lines.Text())
	}
	require.Error(f, cmd.Wait())

	return told, errors.String(), cmd.ProcessState.ExitCode()
}

func TestFrozenProcessStopsItsWorkersAndBeginsNothing(t *testing.T) {
	f := newFixture(t)
	told, stderr, code := f.frozen(order{LeaseDuration: time.Minute}, 3*time.Second)
	require.Equal(t, []string{"cancelled"}, told, "the second object is not begun")
	require.Contains(t, stderr, "has released or lost its Lease")
	require.Equal(t, 2, code)
}

func TestFrozenProcessEndsIfItsLeaseHasRunOut(t *testing.T) {
	f := newFixture(t)
	told, stderr, code := f.frozen(order{LeaseDuration: 3 * time.Second, Deaf: true}, 4*time.Second)
	require.Empty(t, told)
	require.Contains(t, stderr, errStuck.Error())
	require.Equal(t, 1, code, "by its own decision, not that of leader election")
	require.Equal(t, "shard-0", holder(f.lease(f.shard("shard-0"))))
}
