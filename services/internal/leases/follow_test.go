package leases

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/tools/testkit/leasetest"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

// TestLeasesAreListedWhereTheyCannotBeStreamed: API servers before Kubernetes 1.32 do not begin a watch with the
// current state.
func TestLeasesAreListedWhereTheyCannotBeStreamed(t *testing.T) {
	p := localplane.Shared(t)
	ns, ring := p.Namespace(t), "listed"
	a := &leasetest.Shard{Client: p.Client, Ring: ring, Namespace: ns, Name: "a"}
	require.NoError(t, a.Acquire(t.Context()))

	live, err := client.NewWithWatch(p.Config, client.Options{Scheme: p.Client.Scheme()})
	require.NoError(t, err)

	var lists atomic.Int32

	c := interceptor.NewClient(live, interceptor.Funcs{
		Watch: func(ctx context.Context, c client.WithWatch, list client.ObjectList,
			opts ...client.ListOption) (watch.Interface, error) {
			var o client.ListOptions
			if o.ApplyOptions(opts); o.Raw.SendInitialEvents != nil {
				return nil, apierrors.NewInvalid(schema.GroupKind{Kind: "ListOptions"}, "", nil)
			}

			return c.Watch(ctx, list, opts...)
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			var o client.ListOptions
			if o.ApplyOptions(opts); o.Limit > 0 && o.Raw.ResourceVersion == "" {
				lists.Add(1)
			}

			return c.List(ctx, list, opts...)
		},
	})
	index := membership.NewIndex()
	f := newFollower(c, index)
	ctx, cancel := context.WithCancel(t.Context())

	ended := make(chan error, 1)
	go func() { ended <- f.Start(ctx) }()
	require.True(t, f.WaitForCacheSync(t.Context()))
	require.Equal(t, []string{"a"}, index.View(ring).AvailableShards())
	require.NotZero(t, lists.Load())

	require.NoError(t, a.Release(t.Context()))
	require.Eventually(t, func() bool { return len(index.View(ring).AvailableShards()) == 0 }, 20*time.Second,
		10*time.Millisecond)
	require.NoError(t, a.Delete(t.Context()))
	require.Eventually(t, func() bool { return len(index.View(ring).Shards()) == 0 }, 20*time.Second, 10*time.Millisecond)
	cancel()
	require.NoError(t, <-ended)
}
