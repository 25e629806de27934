package shardleases

import (
	"context"
	"fmt"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/services/internal/kit"
	"github.com/clusterring/clusterring/services/internal/lease"
	"github.com/clusterring/clusterring/services/internal/leaselist"
	"github.com/clusterring/clusterring/services/internal/membership"
)

// followBackoff returns how attempts to read Leases are spaced out: 0.2 s to 30 s.
func followBackoff() *wait.Backoff {
	return &wait.Backoff{Duration: 200 * time.Millisecond, Factor: 2, Jitter: 0.2, Steps: 9, Cap: 30 * time.Second}
}

// Follow does the same as [Watch], but keeps no Lease: the index stores a fraction of each Lease, and with thousands of shards, a cache of
// Leases would be most of a service's memory. Nothing may then read Leases from the manager's client. Like caches, the watch starts
// before the controllers, which wait for it, and ends after them.
func Follow(rt *kit.Runtime, index *membership.Index) (*Synced, error) {
	config := rt.Manager.GetConfig()

	c, err := client.NewWithWatch(config, client.Options{
		Scheme: rt.Manager.GetScheme(), Mapper: rt.Manager.GetRESTMapper(), HTTPClient: rt.Manager.GetHTTPClient(),
	})
	if err != nil {
		return nil, fmt.Errorf("follow the Leases of shards: %w", err)
	}

	f := newFollower(c, index)

	f.Cache = rt.Manager.GetCache()
	if err := rt.Manager.Add(f); err != nil {
		return nil, fmt.Errorf("follow the Leases of shards: %w", err)
	}

	return synced(rt, f), nil
}

// follower tells an index of all Leases of shards. For the manager it is a cache, so that it is started and awaited as one. For a
// reflector of client-go it is the store.
type follower struct {
	cache.Cache

	client client.WithWatch
	index  *membership.Index
	// listed is closed by seen, when all Leases have been seen that there were.
	listed chan struct{}
	seen   func()
}

func newFollower(c client.WithWatch, index *membership.Index) *follower {
	listed := make(chan struct{})
	return &follower{client: c, index: index, listed: listed, seen: sync.OnceFunc(func() { close(listed) })}
}

// Name returns what has synced; Done closes when all Leases that existed at the start have been seen.
func (*follower) Name() string { return "Leases of shards" }

// Done implements the interface described at Name.
func (f *follower) Done() <-chan struct{} { return f.listed }

// GetCache makes the manager treat the follower as a cache.
func (f *follower) GetCache() cache.Cache { return f }

// WaitForCacheSync waits until all Leases that existed at the start have been seen; it returns false if ctx ends before.
func (f *follower) WaitForCacheSync(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-f.listed:
		return true
	}
}

// Start follows the Leases until ctx ends.
func (f *follower) Start(ctx context.Context) error {
	source := leaselist.Source(&toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			var list coordinationv1.LeaseList
			return &list, f.client.List(ctx, &list, ofShards(&opts))
		},
		WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			return f.client.Watch(ctx, &coordinationv1.LeaseList{}, ofShards(&opts))
		},
	})

	toolscache.NewReflectorWithOptions(source, &coordinationv1.Lease{}, store{f}, toolscache.ReflectorOptions{
		Name: f.Name(), Backoff: followBackoff(),
	}).RunWithContext(ctx)

	return nil
}

// ofShards selects the Leases of shards among all of a cluster.
func ofShards(opts *metav1.ListOptions) *client.ListOptions {
	selector, err := labels.Parse(contract.LabelClusterRing)
	if err != nil {
		panic(err) // a constant
	}

	return &client.ListOptions{LabelSelector: selector, Limit: opts.Limit, Continue: opts.Continue, Raw: opts}
}

// store passes what a reflector reports to the index.
type store struct{ *follower }

var _ toolscache.TransformingStore = store{}

// Transformer lets the reflector keep less of the Leases that it collects for Replace.
func (store) Transformer() toolscache.TransformFunc {
	return func(obj any) (any, error) {
		if l, ok := obj.(*coordinationv1.Lease); ok {
			return lease.Slim(l), nil
		}

		return obj, nil
	}
}

// Add reports a Lease that has appeared.
func (s store) Add(obj any) error { return s.Update(obj) }

// Update reports a Lease that has changed.
func (s store) Update(obj any) error {
	if l, ok := obj.(*coordinationv1.Lease); ok {
		s.index.Upsert(l)
	}

	return nil
}

// Delete reports a Lease that is gone.
func (s store) Delete(obj any) error {
	if l, ok := obj.(*coordinationv1.Lease); ok {
		s.index.Delete(client.ObjectKeyFromObject(l))
	}

	return nil
}

// Replace reports all Leases, and thereby those that are gone.
func (s store) Replace(all []any, _ string) error {
	there := sets.New[types.NamespacedName]()

	s.index.Batch(func() {
		for _, obj := range all {
			if l, ok := obj.(*coordinationv1.Lease); ok {
				s.index.Upsert(l)
				there.Insert(client.ObjectKeyFromObject(l))
			}
		}

		s.index.Retain(there.Has)
	})
	s.seen()

	return nil
}

// Resync has nothing to do.
func (store) Resync() error { return nil }
