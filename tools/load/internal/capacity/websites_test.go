package capacity

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/tools/lab/continuity"
)

// A load ends when its last change is worked on, and nothing waits.
func TestLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		metrics := []string{
			`workqueue_depth{name="website"} 1`,
			`controller_runtime_active_workers{controller="website"} 1`,
			`workqueue_depth{name="fleet"} 1`,
		}
		generation, asked := atomic.Int64{}, 0

		l := &Load{Clock: clock.RealClock{}, Rng: chance(1), Tracker: continuity.NewTracker(DoneWithin)}
		l.Metrics = func(context.Context) ([]string, error) {
			_, pending, _ := l.Tracker.Totals()
			require.Zero(t, pending)

			asked++

			return metrics[min((asked-1)/2, len(metrics)-1):][:1], nil
		}

		failed := errors.New("failed")
		err := l.Under(t.Context(), func() error {
			clock.RealClock{}.Sleep(100 * time.Second)
			return failed
		}, Changes{Rate{Base: 10}, func(context.Context) error {
			n := generation.Add(1)
			l.Tracker.Changed("a", n, 0)
			time.AfterFunc(3*time.Second, func() { l.Tracker.Observed("a", n, time.Second) })

			return nil
		}}, Changes{Rate{Base: 1}, func(context.Context) error { return failed }})
		require.ErrorIs(t, err, failed)
		require.Equal(t, 6, asked, "of the queue and the workers, until neither has anything")

		require.Len(t, l.Offered, 2)
		require.NoError(t, l.Offered[0].Check())
		require.Error(t, l.Offered[1].Check())

		metrics[2] = `workqueue_queue_duration_seconds_bucket{name="website",le="1"} 7
workqueue_queue_duration_seconds_bucket{name="website",le="+Inf"} 9
workqueue_queue_duration_seconds_bucket{name="fleet",le="1"} 100
workqueue_queue_duration_seconds_count{name="website"} 9`
		n := int(generation.Load())
		s, err := l.Counts(t.Context())
		require.NoError(t, err)
		require.Equal(t, []continuity.Counts{counts(9, 7)}, s.Begun)
		require.Equal(t, counts(n, n), s.Done)
	})
}

func TestWhatDoesNotCount(t *testing.T) {
	good := Offered{Asked: 2, Took: make([]time.Duration, 2)}
	require.Empty(t, Invalid([]Offered{good}, 0, 0))

	late := good
	late.Lag = time.Second
	require.Equal(t, []string{"changes began up to 1s late"}, Invalid([]Offered{good, late}, 0, 0))
	require.Len(t, Invalid(nil, 1000, 1), 2, "the machine was busy, and requests were refused")
}
