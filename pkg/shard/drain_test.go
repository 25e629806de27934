package shard

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// If the drain names the next shard, the shard writes this name itself: no assigner must be asked.
func TestDrainNamesTheNextShard(t *testing.T) {
	for _, tc := range []struct{ drain, next string }{
		{"true", ""}, {"shard-1", "shard-1"}, {"shard-0", ""}, // its own name does not count as another shard
	} {
		t.Run(tc.drain, func(t *testing.T) {
			f := newFixture(t)
			s := f.shard("shard-0")
			s.term.unlimited()
			cm := f.configMap(s, "a")
			f.label(cm, s.drainKey, tc.drain)

			worker := s.Reconciler(f.admin, &corev1.ConfigMap{}, reconcile.Func(nothing))
			_, err := worker.Reconcile(t.Context(), request(cm))
			require.NoError(t, err)
			f.refresh(cm)
			require.Equal(t, tc.next, cm.Labels[s.shardKey])
			require.NotContains(t, cm.Labels, s.drainKey)
			require.False(t, s.Owns(cm))
		})
	}
}

// An object that nobody works on is released at once, however busy the workers of its controller are.
func TestDrainDoesNotQueueBehindWork(t *testing.T) {
	f := newFixture(t)
	s := f.shard("shard-0")
	b := newBlocker()

	var objects []*corev1.ConfigMap
	for i := range 30 {
		objects = append(objects, f.configMap(s, fmt.Sprint("object-", i)))
	}

	f.start(s, func(mgr ctrl.Manager) { f.controls(mgr, s, &corev1.ConfigMap{}, b.reconcile) })

	busy := map[string]bool{}
	for range 2 {
		busy[receive(f, b.entered, "a worker is in a long reconcile").Name] = true
	}

	for _, cm := range objects {
		f.label(cm, s.drainKey, "true")
	}

	for _, cm := range objects {
		if !busy[cm.Name] {
			f.released(s, cm)
		}
	}

	for _, cm := range objects {
		f.refresh(cm)
		require.Equal(t, busy[cm.Name], s.draining(cm), "an object that is worked on is released by its worker")
	}

	close(b.proceed)

	for _, cm := range objects {
		f.released(s, cm)
	}
}

// Whatever a controller filters, drains are acknowledged.
func TestEventFiltersHideNoDrain(t *testing.T) {
	f := newFixture(t)
	s := f.shard("shard-0")
	cm := f.configMap(s, "a")
	before := f.configMap(s, "drained-before-the-start")
	f.label(before, s.drainKey, "true")

	b := newBlocker()
	close(b.proceed)
	f.start(s, func(mgr ctrl.Manager) {
		// As for a controller that warms up, the events come before the term.
		_, err := mgr.GetCache().GetInformer(t.Context(), &corev1.ConfigMap{}, ctrlcache.BlockUntilSynced(false))
		require.NoError(t, err)

		nothingPasses := predicate.NewPredicateFuncs(func(obj client.Object) bool { return obj.GetName() == "a" && !s.draining(obj) })
		require.NoError(t, ctrl.NewControllerManagedBy(mgr).Named("test").For(&corev1.ConfigMap{}).WithEventFilter(nothingPasses).
			Complete(s.Reconciler(mgr.GetClient(), &corev1.ConfigMap{}, reconcile.Func(b.reconcile))))
	})
	f.released(s, before)
	receive(f, b.entered, "it works")

	f.label(cm, s.drainKey, "shard-1")
	f.eventually("the next shard has it", func() bool {
		f.refresh(cm)

		return cm.Labels[s.shardKey] == "shard-1"
	})
	require.Empty(t, b.entered)
}

// The time-out of a reconcile does not break off the acknowledgement that follows it.
func TestAcknowledgementAfterTheContextOfAReconcileHasEnded(t *testing.T) {
	f := newFixture(t)
	s := f.shard("shard-0")
	s.term.unlimited()
	cm := f.configMap(s, "a")

	ctx, cancel := context.WithCancel(t.Context())

	var worker reconcile.Reconciler

	worker = s.Reconciler(f.admin, &corev1.ConfigMap{}, reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
		f.label(cm, s.drainKey, "true")
		_, err := worker.Reconcile(t.Context(), request(cm)) // another worker sees the drain
		cancel()

		return reconcile.Result{}, err
	}))
	_, err := worker.Reconcile(ctx, request(cm))
	require.NoError(t, err)
	f.refresh(cm)
	require.Empty(t, cm.Labels)
}
