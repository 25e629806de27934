package website_test

import (
	"context"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/tools/example/api/v1alpha1"
	"github.com/clusterring/clusterring/tools/example/website"
)

// sites has one Website, at the generation that the cache shows, and as of which it was worked on.
type sites struct {
	client.Client

	generation, observed int64
}

func (s *sites) Get(_ context.Context, _ client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	site := o.(*v1alpha1.Website) //nolint:forcetypeassert // the only kind that is asked for
	site.Generation, site.Status.ObservedGeneration = s.generation, s.observed

	return nil
}

var nothing = reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
	return reconcile.Result{}, nil
})

func TestChangeDuration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cache := &sites{generation: 1}
		slow := website.Slow(cache, time.Minute, 0, nothing)
		takes := func(want time.Duration, why string) {
			t.Helper()

			began := clock.RealClock{}.Now()

			_, err := slow.Reconcile(t.Context(), reconcile.Request{})
			require.NoError(t, err)
			require.Equal(t, want, clock.RealClock{}.Since(began), why)
		}

		takes(0, "a new Website")
		takes(0, "nothing has changed")

		cache.generation = 2
		takes(time.Minute, "a change")
		takes(0, "the cache does not show yet that it was worked on")

		cache.generation, cache.observed = 4, 4
		takes(0, "it comes back from a shard that has worked on the changes")

		slow = website.Slow(cache, time.Minute, 0, slow)
		cache.observed = 1
		takes(time.Minute, "a change that another shard has not worked on")
	})
}

func TestChangeCPU(t *testing.T) {
	const want = 20 * time.Millisecond

	runtime.LockOSThread()

	defer runtime.UnlockOSThread()

	busy := website.Slow(&sites{generation: 2, observed: 1}, 0, want, nothing)

	for _, least := range []time.Duration{want, 0} { // nothing has changed then
		before := threadCPU(t)

		_, err := busy.Reconcile(t.Context(), reconcile.Request{})
		require.NoError(t, err)

		after := threadCPU(t)
		require.GreaterOrEqual(t, after-before, least)
		require.Less(t, after-before, least+want)
	}
}

func threadCPU(t *testing.T) time.Duration {
	t.Helper()

	var used unix.Timespec
	require.NoError(t, unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &used))

	return time.Duration(used.Nano())
}
