//go:build linux

package shard

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	testingclock "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// order is an instruction of a test to a shard's process.
type order struct {
	Host       string
	TLS        rest.TLSClientConfig
	Ring, Name string
	Poison     string // the name of objects whose reconcile ends the process; all others are reported
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
		RenewDeadline: 2 * time.Second, RetryPeriod: 200 * time.Millisecond, HoldOff: minHoldOff,
		Kinds: Kinds{Main(&corev1.ConfigMap{})},
	})
	if err != nil {
		panic(err)
	}

	worker := reconcile.Func(func(_ context.Context, req reconcile.Request) (reconcile.Result, error) {
		fmt.Fprintln(os.Stdout, req.Name)

		if req.Name == o.Poison {
			os.Exit(poisoned) //nolint:revive // this is what it is about
		}

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

// runningProcess is a process that is a shard, and what it has reported.
type runningProcess struct {
	*fixture

	cmd *exec.Cmd
	out *bufio.Scanner
}

// run starts a process as the shard, in whose reconciles objects with the name "poison" end it.
func (f *fixture) run(name string) *runningProcess {
	f.Helper()

	raw, err := json.Marshal(order{
		Host: f.config.Host, TLS: f.config.TLSClientConfig, Ring: f.ring, Name: name, Poison: "poison",
	})
	require.NoError(f, err)

	cmd := exec.CommandContext(f.Context(), os.Args[0])

	cmd.Env, cmd.Stderr = append(os.Environ(), processVariable+"="+string(raw)), os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(f, err)
	require.NoError(f, cmd.Start())

	return &runningProcess{f, cmd, bufio.NewScanner(out)}
}

// reports waits until the process has reported these objects, and fails if it reports others.
func (p *runningProcess) reports(names ...string) {
	p.Helper()

	for seen := []string{}; len(seen) < len(names); {
		require.True(p, p.out.Scan(), "the process works; so far: %v", seen)
		require.Contains(p, names, p.out.Text())

		if !slices.Contains(seen, p.out.Text()) {
			seen = append(seen, p.out.Text())
		}
	}
}

// poisoned waits until the process has ended in the reconcile of the poison.
func (p *runningProcess) poisoned() {
	p.Helper()

	last := ""
	for p.out.Scan() {
		last = p.out.Text()
	}

	require.Error(p, p.cmd.Wait())
	require.Equal(p, poisoned, p.cmd.ProcessState.ExitCode())
	require.Equal(p, "poison", last)
}

// kill ends the process.
func (p *runningProcess) kill() {
	p.Helper()
	require.NoError(p, p.cmd.Process.Kill())
	require.Error(p, p.cmd.Wait())
}

// An object whose reconcile has ended the process twice is held back, by whichever shard it belongs to, until it
// changes or a person wants it back.
func TestPoisonIsHeldBack(t *testing.T) {
	f := newFixture(t)
	s, other := f.shard("shard-0"), f.shard("shard-1")

	for _, name := range []string{"shard-0", "shard-1"} {
		// their processes do not end in good order
		t.Cleanup(func() { _ = os.RemoveAll(notesOf(f.config.Host, f.namespace, f.ring, name)) })
	}

	poison := f.configMap(s, "poison")
	f.configMap(s, "a")
	f.configMap(s, "b")

	f.run("shard-0").poisoned()
	require.Empty(t, poison.Annotations)
	f.run("shard-0").poisoned()

	p := f.run("shard-0")
	p.reports("a", "b")
	f.heldBack(s, poison)
	f.eventually("an event says so", func() bool {
		var list eventsv1.EventList
		require.NoError(f, f.admin.List(f.Context(), &list, client.InNamespace(f.namespace)))

		return slices.ContainsFunc(list.Items, func(e eventsv1.Event) bool {
			return e.Reason == "HeldBack" && e.Regarding.Name == "poison" && e.Regarding.Kind == "ConfigMap" &&
				e.Regarding.UID == poison.UID
		})
	})

	// Another shard gets it, and works on its other objects.
	q := f.run("shard-1")
	f.label(poison, s.shardKey, "shard-1")
	f.configMap(other, "c")
	q.reports("c")
	q.kill()

	// A person wants it back.
	f.label(poison, s.shardKey, "shard-0")
	f.configMap(s, "d")
	p.reports("d")
	require.NoError(t, f.admin.Patch(t.Context(), poison,
		client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":null}}`))))
	p.poisoned()
	f.run("shard-0").poisoned()

	// It changes.
	p = f.run("shard-0")
	f.heldBack(s, poison)
	require.NoError(t, f.admin.Patch(t.Context(), poison,
		client.RawPatch(types.MergePatchType, []byte(`{"data":{"a":"b"}}`))))
	p.poisoned()
}

func (f *fixture) heldBack(s *Shard, obj client.Object) {
	f.Helper()
	f.eventually("the object is held back", func() bool {
		f.refresh(obj)

		return obj.GetAnnotations()[s.LabelKeys().Held] == s.poison.fingerprint(obj)
	})
}

// After two ends, it is certain which of several objects was worked on both times.
func TestSuspectsAreTriedOneByOne(t *testing.T) {
	key := func(name string) job {
		return job{objectKey: objectKey{corev1.SchemeGroupVersion.WithKind("ConfigMap").GroupKind(),
			types.NamespacedName{Namespace: "n", Name: name}}}
	}
	start := func() *poison {
		p := newPoison(ringKeys{Held: "held"})
		require.NoError(t, p.open(notesOf(t.Name())))

		return p
	}
	may := func(p *poison, name string) bool {
		may, _ := p.enter(t.Context(), judged{job: key(name)})

		return may
	}

	p := start()
	require.True(t, may(p, "a"))
	require.True(t, may(p, "b"))
	require.True(t, may(p, "done"))
	p.leave(key("done"), true)

	p = start()
	require.Len(t, p.suspects, 2)
	require.True(t, may(p, "c"))
	require.True(t, may(p, "a"))
	require.False(t, may(p, "b"), "while the other is tried")
	p.leave(key("a"), true)
	require.True(t, may(p, "b"))
	require.True(t, may(p, "b"), "by another controller")
	p.leave(key("b"), true)

	p = start()
	require.Nil(t, p.suspects[key("a")], "it has returned")
	require.True(t, p.suspects[key("b")].proven)
	require.False(t, p.suspects[key("c")].proven)
	require.False(t, may(p, "b"))

	p.clock = testingclock.NewFakePassiveClock(p.clock.Now().Add(2 * suspected))
	require.True(t, may(p, "b"), "it was long ago")
	require.True(t, may(p, "a"))
	p.close()

	p = start()
	require.Empty(t, p.suspects, "the process has ended in good order")
	p.close()
}
