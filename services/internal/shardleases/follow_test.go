package shardleases

import (
	"context"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/tools/lab/localplane"
	"github.com/clusterring/clusterring/tools/lab/localplane/leasetest"
)

func TestMain(m *testing.M) { os.Exit(localplane.Main(m)) }

// TestWhatHappensWhileNobodyWatchesIsNoticed: a watch whose history the API server no longer has is followed by another list,
// and the index forgets the Leases that are not in it.
func TestWhatHappensWhileNobodyWatchesIsNoticed(t *testing.T) {
	p := localplane.Shared(t)
	ns, ring := p.Namespace(t), "relisted"
	shard := func(name string) *leasetest.Shard {
		return &leasetest.Shard{Client: p.Client, Ring: ring, Namespace: ns, Name: name}
	}
	gone, stays, comes := shard("gone"), shard("stays"), shard("comes")
	require.NoError(t, gone.Acquire(t.Context()))
	require.NoError(t, stays.Acquire(t.Context()))

	// The first watch sees nothing, and ends with the news that it has come too late.
	live, err := client.NewWithWatch(p.Config, client.Options{Scheme: p.Client.Scheme()})
	require.NoError(t, err)

	deaf := watch.NewFake()

	var watches atomic.Int32

	c := interceptor.NewClient(live, interceptor.Funcs{Watch: func(ctx context.Context, c client.WithWatch, list client.ObjectList,
		opts ...client.ListOption,
	) (watch.Interface, error) {
		if watches.Add(1) == 1 {
			return deaf, nil
		}

		return c.Watch(ctx, list, opts...)
	}})
	index := membership.NewIndex()
	f := newFollower(c, index, clock.RealClock{})
	ctx, cancel := context.WithCancel(t.Context())

	ended := make(chan error, 1)
	go func() { ended <- f.Start(ctx) }()
	require.True(t, f.WaitForCacheSync(t.Context()))
	require.Equal(t, []string{"gone", "stays"}, index.View(ring).AvailableShards())

	require.NoError(t, gone.Delete(t.Context()))
	require.NoError(t, comes.Acquire(t.Context()))

	status := apierrors.NewResourceExpired("too old").Status()
	deaf.Error(&status)

	available := func() []string { return index.View(ring).AvailableShards() }
	require.Eventually(t, func() bool { return len(available()) == 2 && available()[0] == "comes" }, 20*time.Second, 10*time.Millisecond)
	require.Equal(t, []string{"comes", "stays"}, available())

	require.NoError(t, stays.Release(t.Context()))
	require.Eventually(t, func() bool { return len(available()) == 1 }, 20*time.Second, 10*time.Millisecond, "the new watch tells")
	require.NoError(t, live.Delete(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "stays"}}))
	require.Eventually(t, func() bool { return len(index.View(ring).Shards()) == 1 }, 20*time.Second, 10*time.Millisecond)
	cancel()
	require.NoError(t, <-ended)
}
