package shard

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

// stopping reports whether the shard's Lease says that it stops.
func (f *fixture) stopping(s *Shard) bool {
	f.Helper()

	lease := f.lease(s)

	return lease.Spec.RenewTime != nil && contract.IsStopping(lease.Annotations, lease.Spec.RenewTime.Time)
}

// startUntilDrained starts a shard that reports its reconciles.
func (f *fixture) startUntilDrained(s *Shard) (p *process, told chan string) {
	f.Helper()

	told = make(chan string, 100)
	p = f.start(s, func(mgr ctrl.Manager) {
		f.controls(mgr, s, &corev1.ConfigMap{}, func(_ context.Context, req ctrl.Request) (ctrl.Result, error) {
			told <- req.Name

			return ctrl.Result{}, nil
		})
	}, &corev1.ConfigMap{})

	return p, told
}

func TestAShardThatStopsWorksUntilItsObjectsAreDrained(t *testing.T) {
	f := newFixture(t)
	s := f.shard("shard-0")
	p, told := f.startUntilDrained(s)
	a, b := f.configMap(s, "a"), f.configMap(s, "b")
	receive(f, told, "it works")
	receive(f, told, "it works")

	p.cancel()
	f.eventually("the Lease says that it stops", func() bool { return f.stopping(s) })
	renewed := f.lease(s).Spec.RenewTime
	f.eventually("each renewal says it", func() bool {
		lease := f.lease(s)

		return lease.Spec.RenewTime.After(renewed.Time) && contract.IsStopping(lease.Annotations, lease.Spec.RenewTime.Time)
	})

	c := f.configMap(s, "c")
	require.Equal(t, "c", receive(f, told, "it still works"))

	f.label(a, s.drainKey, "shard-1")
	f.eventually("it hands objects over", func() bool {
		f.refresh(a)

		return a.Labels[s.shardKey] == "shard-1"
	})
	require.Equal(t, "shard-0", holder(f.lease(s)), "it has another object")
	f.label(b, s.drainKey, "shard-1")
	f.label(c, s.drainKey, "shard-1")
	p.wait()
	require.NoError(t, p.err)
	require.Empty(t, holder(f.lease(s)))
	require.False(t, f.stopping(s))
}

func TestAShardThatNobodyDrainsStops(t *testing.T) {
	for name, timeout := range map[string]time.Duration{"because nobody drains it": 0, "because the time is over": time.Second, "at once": -1} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			s := f.shard("shard-0")

			if timeout != 0 {
				s.options.DrainTimeout = timeout
			}

			p, told := f.startUntilDrained(s)
			f.configMap(s, "a")
			receive(f, told, "it works")
			require.NoError(t, p.stop())
			require.Empty(t, holder(f.lease(s)))
		})
	}
}

// The process that waits for a slot takes over what is not drained yet.
func TestAShardThatStopsGivesItsSlotToWhoeverBeginsToWaitForIt(t *testing.T) {
	f := newFixture(t)
	s := f.claim(f.slotOptions("pod-a", 1)).got()
	p, told := f.startUntilDrained(s)
	object := f.configMap(s, "a")
	receive(f, told, "it works")

	p.cancel()
	f.eventually("the Lease says that it stops", func() bool { return f.stopping(s) })

	next := f.claim(f.slotOptions("pod-b", 1)).got()
	require.Equal(t, s.Name(), next.Name())
	p.wait()
	require.NoError(t, p.err)
	require.False(t, f.stopping(next), "the Lease is that of a shard that works")

	f.refresh(object)
	require.Equal(t, next.Name(), object.Labels[s.shardKey])
}

// A reconcile under a drain can take longer than a pause between drains.
func TestAShardThatStopsWaitsForItsWorkers(t *testing.T) {
	f := newFixture(t)
	s := f.shard("shard-0")
	clk := &lateClock{}
	s.term.clock = clk
	entered, proceed, stopped := make(chan struct{}), make(chan struct{}), make(chan struct{})
	p := f.start(s, func(mgr ctrl.Manager) {
		f.controls(mgr, s, &corev1.ConfigMap{}, func(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
			close(entered)

			select {
			case <-ctx.Done():
				close(stopped)
			case <-proceed:
			}

			return ctrl.Result{}, nil
		})
	}, &corev1.ConfigMap{})
	cm := f.configMap(s, "a")
	receive(f, entered, "a worker is in a long reconcile")

	f.label(cm, s.drainKey, "shard-1")
	f.eventually("the drain was seen", s.guard.draining)
	p.cancel()
	f.eventually("the Lease says that it stops", func() bool { return f.stopping(s) })
	clk.ahead.Store(int64(drainStalled + time.Second))

	for range 5 {
		before := f.lease(s).Spec.RenewTime
		f.eventually("it goes on", func() bool { return f.lease(s).Spec.RenewTime.After(before.Time) })
	}

	select {
	case <-stopped:
		require.Fail(t, "the worker was told to stop")
	default:
	}

	close(proceed)
	p.wait()
	require.NoError(t, p.err)
	f.refresh(cm)
	require.Equal(t, "shard-1", cm.Labels[s.shardKey])
}
