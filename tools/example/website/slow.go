package website

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/tools/example/api/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/history"
)

// Slow makes the work on each change of a Website's spec take longer, and more CPU time, but not that on a new Website.
// The client reads from the cache of the reconciler. With neither, it returns the reconciler as it is.
func Slow(cached client.Reader, duration, cpu time.Duration, inner reconcile.Reconciler) reconcile.Reconciler {
	if duration <= 0 && cpu <= 0 {
		return inner
	}

	// The generation that was last worked on, by Website: the cache may not show yet what a reconcile has written.
	var worked sync.Map

	work := reconcile.Func(func(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
		site := &v1alpha1.Website{}
		if err := cached.Get(ctx, req.NamespacedName, site); err != nil {
			worked.Delete(req.NamespacedName)
		} else {
			worked.Store(req.NamespacedName, site.Generation)
		}

		return inner.Reconcile(ctx, req)
	})
	slow := history.Delay(clock.RealClock{}, duration,
		reconcile.Func(func(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
			if err := burn(cpu); err != nil {
				return reconcile.Result{}, err
			}

			return work.Reconcile(ctx, req)
		}))

	return reconcile.Func(func(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
		site := &v1alpha1.Website{}
		_ = cached.Get(ctx, req.NamespacedName, site) // the reconcile reports the error

		// What was worked on here is older than what the status tells, after other shards have had the Website.
		before := site.Status.ObservedGeneration
		if own, known := worked.Load(req.NamespacedName); known {
			before = max(before, own.(int64)) //nolint:forcetypeassert // nothing else is stored
		}

		if before == 0 || before == site.Generation {
			return work.Reconcile(ctx, req)
		}

		return slow.Reconcile(ctx, req)
	})
}

// burn uses so much CPU time. Where the container may not use more for now, the thread does not get on with it.
func burn(amount time.Duration) error {
	runtime.LockOSThread()

	defer runtime.UnlockOSThread()

	began, err := threadCPU()
	for used := began; err == nil && used-began < amount; {
		used, err = threadCPU()
	}

	return err
}

// threadCPU returns the CPU time of this thread.
func threadCPU() (time.Duration, error) {
	var used unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &used); err != nil {
		return 0, fmt.Errorf("read the CPU clock: %w", err)
	}

	return time.Duration(used.Nano()), nil
}
