package shard_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/shard"
)

// work records which versions of an operator work at the same time.
type work struct {
	mu       sync.Mutex
	working  map[string]int // reconciles by version
	done     map[string]int // by version
	overlaps []string
}

func newWork() *work { return &work{working: map[string]int{}, done: map[string]int{}} }

// by is a reconciler of the version, which takes a while.
func (f *operators) by(version string, w *work) reconcile.Reconciler {
	return reconcile.Func(func(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
		w.mu.Lock()
		w.working[version]++

		for other, n := range w.working {
			if other != version && n > 0 {
				w.overlaps = append(w.overlaps, fmt.Sprintf("%s works while %s does", version, other))
			}
		}
		w.mu.Unlock()

		err := f.admin.List(ctx, &corev1.ConfigMapList{}, client.InNamespace(f.namespace)) // work

		w.mu.Lock()
		defer w.mu.Unlock()

		w.working[version]--
		w.done[version]++

		return reconcile.Result{RequeueAfter: 10 * time.Millisecond}, err
	})
}

func (w *work) of(version string) int {
	w.mu.Lock()
	defer w.mu.Unlock()

	return w.done[version]
}

// elected are the options of the operator as it was before, which stay.
func (f *operators) elected() manager.Options {
	o := f.options()
	o.LeaderElection, o.LeaderElectionID, o.LeaderElectionNamespace = true, "operator", f.namespace
	o.LeaseDuration, o.RenewDeadline, o.RetryPeriod = ptr.To(3*time.Second), ptr.To(2*time.Second),
		ptr.To(200*time.Millisecond)

	return o
}

// former starts the version that is not sharded.
func (f *operators) former(w *work) (stop func() error) {
	f.Helper()
	options := f.elected()
	options.Cache.ByObject = nil
	mgr, err := manager.New(f.config, options)
	require.NoError(f, err)
	require.NoError(f,
		ctrl.NewControllerManagedBy(mgr).Named("maps").For(&corev1.ConfigMap{}).Complete(f.inNamespace(f.by("old", w))))

	return f.start(mgr)
}

// inNamespace drops requests for objects of other tests.
func (f *operators) inNamespace(inner reconcile.Reconciler) reconcile.Reconciler {
	return reconcile.Func(func(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
		if r.Namespace != f.namespace {
			return reconcile.Result{}, nil
		}

		return inner.Reconcile(ctx, r)
	})
}

// sharded starts a shard of the new version.
func (f *operators) sharded(name string, w *work) (stop func() error) {
	f.Helper()
	mgr, err := shard.NewManager(f.config, f.elected(), f.shard(name))
	require.NoError(f, err)
	require.NoError(f, ctrl.NewControllerManagedBy(mgr).Named("maps").For(&corev1.ConfigMap{}).Complete(f.by("new", w)))

	return f.start(mgr)
}

// Both versions run at the same time in a rolling update, in both directions, and never work at the same time.
func TestFormerVersionAndShardsNeverWorkAtTheSameTime(t *testing.T) {
	f, w := newOperators(t), newWork()
	f.configMap("a", "shard-0")
	f.configMap("b", "shard-1")
	leaving := []*corev1.ConfigMap{f.configMap("c", "shard-0"), f.configMap("d", "shard-1")}

	stopOld := f.former(w)
	f.eventually(func() bool { return w.of("old") > 5 }, "the former version works")

	stopOne, stopTwo := f.sharded("shard-0", w), f.sharded("shard-1", w)
	f.eventually(func() bool { return f.holder("shard-0") == "shard-0" && f.holder("shard-1") == "shard-1" },
		"the shards are available while they wait")

	for _, cm := range leaving {
		f.Drain(cm)
		f.eventually(func() bool {
			require.NoError(t, f.admin.Get(t.Context(), client.ObjectKeyFromObject(cm), cm))
			return len(cm.Labels) == 0
		}, "drains are acknowledged while the shards wait")
	}

	before := w.of("old")
	f.eventually(func() bool { return w.of("old") > before+20 }, "the former version goes on")
	require.Zero(t, w.of("new"))

	require.NoError(t, stopOld())
	f.eventually(func() bool { return w.of("new") > 5 }, "the shards work")

	stopBack := f.former(w)
	old := w.of("old")

	require.NoError(t, stopOne())

	before = w.of("new")
	f.eventually(func() bool { return w.of("new") > before+20 }, "the other shard goes on")
	require.Equal(t, old, w.of("old"))
	require.NoError(t, stopTwo())
	f.eventually(func() bool { return w.of("old") > old+5 }, "the former version works again")
	require.NoError(t, stopBack())
	require.Empty(t, w.overlaps)
}
