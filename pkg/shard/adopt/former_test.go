package adopt_test

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

	"github.com/clusterring/clusterring/pkg/internal/testenv"
	"github.com/clusterring/clusterring/pkg/shard/adopt"
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
func (w *work) by(version string) reconcile.Reconciler {
	return reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
		w.mu.Lock()
		w.working[version]++

		for other, n := range w.working {
			if other != version && n > 0 {
				w.overlaps = append(w.overlaps, fmt.Sprintf("%s works while %s does", version, other))
			}
		}
		w.mu.Unlock()

		<-time.After(5 * time.Millisecond)

		w.mu.Lock()
		defer w.mu.Unlock()

		w.working[version]--
		w.done[version]++

		return reconcile.Result{RequeueAfter: 10 * time.Millisecond}, nil
	})
}

func (w *work) of(version string) int {
	w.mu.Lock()
	defer w.mu.Unlock()

	return w.done[version]
}

// elected are the options of the operator as it was before, which stay.
func (f *fixture) elected() manager.Options {
	o := f.options()
	o.LeaderElection, o.LeaderElectionID, o.LeaderElectionNamespace = true, "operator", f.namespace
	o.LeaseDuration, o.RenewDeadline, o.RetryPeriod = ptr.To(3*time.Second), ptr.To(2*time.Second), ptr.To(200*time.Millisecond)

	return o
}

// former starts the version that is not sharded.
func (f *fixture) former(w *work) (stop func() error) {
	f.Helper()
	options := f.elected()
	options.Cache.ByObject = nil
	mgr, err := manager.New(f.config, options)
	require.NoError(f, err)
	require.NoError(f, ctrl.NewControllerManagedBy(mgr).Named("maps").For(&corev1.ConfigMap{}).Complete(f.inNamespace(w.by("old"))))

	return f.start(mgr)
}

// inNamespace drops requests for objects of other tests.
func (f *fixture) inNamespace(inner reconcile.Reconciler) reconcile.Reconciler {
	return reconcile.Func(func(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
		if r.Namespace != f.namespace {
			return reconcile.Result{}, nil
		}

		return inner.Reconcile(ctx, r)
	})
}

// sharded starts a shard of the new version.
func (f *fixture) sharded(name string, w *work) (stop func() error) {
	f.Helper()
	mgr, err := adopt.NewManager(f.shard(name), f.config, f.elected(), onlySharded("maps"))
	require.NoError(f, err)
	require.NoError(f, ctrl.NewControllerManagedBy(mgr).Named("maps").For(&corev1.ConfigMap{}).Complete(w.by("new")))

	return f.start(mgr)
}

// Both versions run at the same time in a rolling update, in both directions, and never work at the same time.
func TestFormerVersionAndShardsNeverWorkAtTheSameTime(t *testing.T) {
	f, w := newFixture(t), newWork()
	f.configMap("a", "shard-0")
	f.configMap("b", "shard-1")

	stopOld := f.former(w)
	f.eventually(func() bool { return w.of("old") > 5 }, "the former version works")

	stopOne, stopTwo := f.sharded("shard-0", w), f.sharded("shard-1", w)
	f.eventually(func() bool { return f.holds("shard-0") && f.holds("shard-1") }, "the shards are available while they wait")

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

// holds reports whether a shard has its Lease.
func (f *fixture) holds(name string) bool {
	f.Helper()

	return ptr.Deref(testenv.Lease(f, f.admin, client.ObjectKey{Namespace: f.namespace, Name: name}).Spec.HolderIdentity, "") == name
}
