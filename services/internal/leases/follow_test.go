package leases

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/tools/testkit/leasetest"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

// TestWhatHappensWhileNobodyWatchesIsNoticed: a watch whose history the API server no longer has is followed by another
// list, and the index forgets the Leases that are not in it.
func TestWhatHappensWhileNobodyWatchesIsNoticed(t *testing.T) {
	p := localplane.Shared(t)
	ns, ring := p.Namespace(t), "relisted"
	shard := func(name string) *leasetest.Shard {
		return &leasetest.Shard{Client: p.Client, Ring: ring, Namespace: ns, Name: name}
	}
	gone, stays, comes := shard("gone"), shard("stays"), shard("comes")
	require.NoError(t, gone.Acquire(t.Context()))
	require.NoError(t, stays.Acquire(t.Context()))

	// The first watch sees nothing after what there was at first, and ends with the news that it has come too late.
	live, err := client.NewWithWatch(p.Config, client.Options{Scheme: p.Client.Scheme()})
	require.NoError(t, err)

	late := make(chan struct{})

	var watches atomic.Int32

	c := interceptor.NewClient(live, interceptor.Funcs{Watch: func(ctx context.Context, c client.WithWatch,
		list client.ObjectList,
		opts ...client.ListOption,
	) (watch.Interface, error) {
		w, err := c.Watch(ctx, list, opts...)
		if err == nil && watches.Add(1) == 1 {
			return deaf(w, late), nil
		}

		return w, err
	}})
	index := membership.NewIndex()
	f := newFollower(c, index)
	ctx, cancel := context.WithCancel(t.Context())

	ended := make(chan error, 1)
	go func() { ended <- f.Start(ctx) }()
	require.True(t, f.WaitForCacheSync(t.Context()))
	require.Equal(t, []string{"gone", "stays"}, index.View(ring).AvailableShards())

	require.NoError(t, gone.Delete(t.Context()))
	require.NoError(t, comes.Acquire(t.Context()))

	close(late)

	available := func() []string { return index.View(ring).AvailableShards() }
	require.Eventually(t, func() bool { return len(available()) == 2 && available()[0] == "comes" }, 20*time.Second,
		10*time.Millisecond)
	require.Equal(t, []string{"comes", "stays"}, available())

	require.NoError(t, stays.Release(t.Context()))
	require.Eventually(t, func() bool { return len(available()) == 1 }, 20*time.Second, 10*time.Millisecond,
		"the new watch tells")
	require.NoError(t, live.Delete(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: ns,
		Name: "stays"}}))
	require.Eventually(t, func() bool { return len(index.View(ring).Shards()) == 1 }, 20*time.Second, 10*time.Millisecond)
	cancel()
	require.NoError(t, <-ended)
}

// deaf passes on the events of a watch up to those of the current state, and then only that it is too late.
func deaf(w watch.Interface, late <-chan struct{}) watch.Interface {
	events := make(chan watch.Event)

	go func() {
		defer close(events)

		for e := range w.ResultChan() {
			events <- e

			if l, ok := e.Object.(*coordinationv1.Lease); ok && l.Annotations[metav1.InitialEventsAnnotationKey] == "true" {
				break
			}
		}

		<-late
		w.Stop()

		status := apierrors.NewResourceExpired("too old").Status()
		events <- watch.Event{Type: watch.Error, Object: &status}
	}()

	return watch.NewProxyWatcher(events)
}

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
	cancel()
	require.NoError(t, <-ended)
}
