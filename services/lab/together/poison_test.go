package together_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/pkg/shard"
)

const (
	// asShard, if set, is the kubeconfig, the ring, and the name of the shard as which this program runs instead of
	// testing.
	asShard = "TOGETHER_TEST_SHARD"
	// poison is the name of the object whose reconcile ends the process.
	poison = "poison"
	// often is how often an object is reconciled, and late is when that is overdue.
	often, late = 3 * time.Second, 10 * time.Second
)

// runShard runs a shard whose controller reports the names of the ConfigMaps that it reconciles. It does not return
// before its Lease is lost.
func runShard(kubeconfig, ring, name string) error {
	rest, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}

	mgr, err := shard.NewManager(rest, ctrl.Options{
		Metrics: metricsserver.Options{BindAddress: "0"}, Controller: config.Controller{MaxConcurrentReconciles: 4},
	}, shard.Options{Ring: ring, Name: name, Namespace: ring, Kinds: shard.Kinds{shard.Main(&corev1.ConfigMap{})},
		CheckWrites: true})
	if err != nil {
		return err
	}

	err = ctrl.NewControllerManagedBy(mgr).For(&corev1.ConfigMap{}).Complete(
		reconcile.Func(func(_ context.Context, req reconcile.Request) (reconcile.Result, error) {
			_, _ = fmt.Fprintln(os.Stdout, req.Name)

			if req.Name == poison {
				os.Exit(1) //nolint:revive // this is what it is about
			}

			return reconcile.Result{RequeueAfter: often}, nil
		}))
	if err != nil {
		return err
	}

	return mgr.Start(context.Background())
}

// fleet is three processes, each of which a kubelet restarts, and what they report.
type fleet struct {
	*world

	clock clock.Clock
	wait  sync.WaitGroup
	over  chan struct{}

	mu   sync.Mutex
	seen map[string]time.Time // when each object was reconciled last
	// ended are the shards whose processes the poison has ended, in this order, and when.
	ended []string
	last  time.Time
	now   map[string]*exec.Cmd
	gone  string // the shard that is not restarted
}

// serve runs the process of a shard, and restarts it as a kubelet does.
func (f *fleet) serve(name string) {
	for pause := time.Duration(0); ; pause = max(2*pause, 10*time.Second) {
		cmd := exec.CommandContext(f.Context(), os.Args[0])
		cmd.Env, cmd.Stderr = append(os.Environ(),
			asShard+"="+strings.Join([]string{f.plane.Kubeconfig(), f.ring, name}, ",")), os.Stderr

		out, in := io.Pipe()
		cmd.Stdout = in

		f.mu.Lock()
		f.now[name] = cmd
		err := cmd.Start()
		f.mu.Unlock()

		if err != nil {
			return
		}

		go func() { _ = in.CloseWithError(cmd.Wait()) }()

		f.read(name, out)

		select {
		case <-f.over:
			return
		case <-f.clock.After(pause):
			if f.isGone(name) {
				return
			}
		}
	}
}

// read records what a process reports.
func (f *fleet) read(name string, out io.Reader) {
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		f.mu.Lock()
		f.seen[lines.Text()] = f.clock.Now()

		if lines.Text() == poison {
			f.ended, f.last = append(f.ended, name), f.clock.Now()
		}
		f.mu.Unlock()
	}
}

// overdue returns how many objects of so many were not reconciled lately.
func (f *fleet) overdue(objects int) int {
	f.mu.Lock()
	defer f.mu.Unlock()

	fresh := 0

	for name, at := range f.seen {
		if name != poison && f.clock.Since(at) < late {
			fresh++
		}
	}

	return objects - fresh
}

func (f *fleet) crashes() []string {
	f.mu.Lock()
	defer f.mu.Unlock()

	return slices.Clone(f.ended)
}

func (f *fleet) isGone(name string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()

	return f.gone == name
}

// finish ends the process of a shard for good.
func (f *fleet) finish(name string) {
	f.mu.Lock()
	f.gone = name
	f.mu.Unlock()

	f.stop(name)
}

// stop ends the present processes of shards.
func (f *fleet) stop(names ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()

	for _, name := range names {
		_ = f.now[name].Process.Kill()
	}
}

// An object that ends the process of its shard does so twice. It is then held back, also by the shard that gets it
// next, and the others are hardly disturbed.
func TestPoisonEndsAProcessTwice(t *testing.T) {
	const objects = 300

	w := newWorld(t, v1alpha1.ObjectKey{Type: v1alpha1.KeyName})
	f := &fleet{world: w, clock: clock.RealClock{}, over: make(chan struct{}), seen: map[string]time.Time{},
		now: map[string]*exec.Cmd{}}

	for _, name := range []string{"a", "b", "c"} {
		f.wait.Go(func() { f.serve(name) })
	}

	t.Cleanup(func() {
		close(f.over)
		f.stop(slices.Collect(maps.Keys(f.now))...)
		f.wait.Wait()
	})

	create := func(name string) *corev1.ConfigMap {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}}
		require.NoError(t, w.plane.Client.Create(t.Context(), cm))

		return cm
	}
	for i := range objects {
		create(fmt.Sprint("o-", i))
	}

	require.Eventually(t, func() bool { return f.overdue(objects) == 0 }, 2*patience, interval,
		"all objects should be reconciled")

	culprit := create(poison)
	require.Eventually(t, func() bool { return len(f.crashes()) == 2 }, patience, interval)

	// What is overdue from the second end on counts as a share of a quarter of an hour, of which only the beginning is
	// measured.
	const step = 100 * time.Millisecond

	sum, ticker := time.Duration(0), time.NewTicker(step)
	defer ticker.Stop()

	for calm := 0; calm < 100; <-ticker.C {
		n := f.overdue(objects)
		sum += time.Duration(n) * step

		if calm++; n > 0 || w.held(culprit) == "" {
			calm = 0
		}
	}

	t.Logf("overdue: %s", sum)
	require.Less(t, sum, objects*15*time.Minute/50)

	// Its shard ends for good.
	first := w.at(culprit)
	require.Equal(t, []string{first, first}, f.crashes())
	f.finish(first)
	require.Eventually(t, func() bool { at := w.at(culprit); return at != "" && at != first && f.overdue(objects) == 0 },
		2*patience, interval)
	require.Never(t, func() bool { return len(f.crashes()) > 2 }, 2*often, interval,
		"the next shard should hold it back, too")
}

func (w *world) held(obj client.Object) string {
	w.at(obj)

	return obj.GetAnnotations()[contract.LabelKeysOf(w.ring, "").Held]
}
