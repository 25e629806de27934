package history

import (
	"context"
	"time"

	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Delay makes every reconcile take longer by the given time, so that overlaps become visible, if there are any. The added work
// respects its context.
func Delay(clock clock.Clock, duration time.Duration, inner reconcile.Reconciler) reconcile.Reconciler {
	if duration <= 0 {
		return inner
	}

	return reconcile.Func(func(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
		timer := clock.NewTimer(duration)
		defer timer.Stop()

		select {
		case <-timer.C():
		case <-ctx.Done():
			return reconcile.Result{}, context.Cause(ctx)
		}

		return inner.Reconcile(ctx, req)
	})
}
