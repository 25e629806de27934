package shard

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
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// shifts record which versions of an operator work at the same time.
type shifts struct {
	mu       sync.Mutex
	working  map[string]int // reconciles by version
	done     map[string]int // by version
	overlaps []string
}

func newShifts() *shifts { return &shifts{working: map[string]int{}, done: map[string]int{}} }

// by is a reconciler of the version, which takes a while.
func (f *fixture) by(version string, w *shifts) reconcile.Reconciler {
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

func (w *shifts) of(version string) int {
	w.mu.Lock()
	defer w.mu.Unlock()

	return w.done[version]
}

// elected are the options of the operator as it was before, which stay.
func (f *fixture) elected() manager.Options {
	o := f.options()
	o.LeaderElection, o.LeaderElectionID, o.LeaderElectionNamespace = true, "operator", f.namespace
	o.LeaseDuration, o.RenewDeadline, o.RetryPeriod = ptr.To(6*time.Second), ptr.To(4*time.Second),
		ptr.To(200*time.Millisecond)

	return o
}

// former starts the version that is not sharded.
func (f *fixture) former(w *shifts) *process {
	f.Helper()
	options := f.elected()
	options.Cache.DefaultNamespaces = map[string]cache.Config{f.namespace: {}} // not those of other tests
	mgr, err := manager.New(f.config, options)
	require.NoError(f, err)
	require.NoError(f,
		ctrl.NewControllerManagedBy(mgr).Named("maps").For(&corev1.ConfigMap{}).Complete(f.by("old", w)))

	return f.launch(mgr.Start)
}

// sharded starts a shard of the new version.
func (f *fixture) sharded(name string, w *shifts) *process {
	f.Helper()
	mgr, err := NewManager(f.config, f.elected(), f.named(name))
	require.NoError(f, err)
	require.NoError(f, ctrl.NewControllerManagedBy(mgr).Named("maps").For(&corev1.ConfigMap{}).Complete(f.by("new", w)))

	return f.launch(mgr.Start)
}

// Both versions run at the same time in a rolling update, in both directions, and never work at the same time.
func TestFormerVersionAndShardsNeverWorkAtTheSameTime(t *testing.T) {
	f, w := newFixture(t), newShifts()
	f.configMapOf("shard-0", "a")
	f.configMapOf("shard-1", "b")
	leaving := []*corev1.ConfigMap{f.configMapOf("shard-0", "c"), f.configMapOf("shard-1", "d")}

	former := f.former(w)
	f.eventually("the former version works", func() bool { return w.of("old") > 5 })

	one, two := f.sharded("shard-0", w), f.sharded("shard-1", w)
	f.eventually("the shards are available while they wait", func() bool {
		return holder(f.leaseOf("shard-0")) == "shard-0" && holder(f.leaseOf("shard-1")) == "shard-1"
	})

	for _, cm := range leaving {
		f.label(cm, f.keys.Drain, "true")
		f.released(cm) // while the shards wait
	}

	before := w.of("old")
	f.eventually("the former version goes on", func() bool { return w.of("old") > before+20 })
	require.Zero(t, w.of("new"))

	require.NoError(t, former.stop())
	f.eventually("the shards work", func() bool { return w.of("new") > 5 })

	back := f.former(w)
	old := w.of("old")

	require.NoError(t, one.stop())

	before = w.of("new")
	f.eventually("the other shard goes on", func() bool { return w.of("new") > before+20 })
	require.Equal(t, old, w.of("old"))
	require.NoError(t, two.stop())
	f.eventually("the former version works again", func() bool { return w.of("old") > old+5 })
	require.NoError(t, back.stop())
	require.Empty(t, w.overlaps)
}
