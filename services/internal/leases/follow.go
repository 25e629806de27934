package leases

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/services/internal/lease"
	"github.com/clusterring/clusterring/services/internal/membership"
)

// AddReady adds a check to /readyz.
type AddReady func(name string, check healthz.Checker)

// Watch keeps the index up to date with the Leases of shards, and makes /readyz wait until the index has seen all that
// existed when the watch began, as the result reports: before, a caller could take an unread shard for a dead one. Call
// it when the service is set up. It returns at once; the watch ends with the manager. It is for services that read
// Leases from the manager's cache, too; for others there is [Follow].
func Watch(
	ctx context.Context, mgr manager.Manager, ready AddReady, index *membership.Index,
) (toolscache.DoneChecker, error) {
	informer, err := mgr.GetCache().GetInformer(ctx, &coordinationv1.Lease{})
	if err != nil {
		return nil, fmt.Errorf("watch the Leases of shards: %w", err)
	}

	upsert := func(obj any) {
		if l, ok := obj.(*coordinationv1.Lease); ok {
			index.Upsert(l)
		}
	}

	registration, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    upsert,
		UpdateFunc: func(_, obj any) { upsert(obj) },
		DeleteFunc: func(obj any) {
			if name, err := toolscache.DeletionHandlingObjectToName(obj); err == nil {
				index.Delete(name.AsNamespacedName())
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("watch the Leases of shards: %w", err)
	}

	return awaited(ready, registration.HasSyncedChecker()), nil
}

// awaited makes /readyz wait for the Leases.
func awaited(ready AddReady, leases toolscache.DoneChecker) toolscache.DoneChecker {
	ready("shard-leases", func(*http.Request) error {
		if !toolscache.IsDone(leases) {
			return errors.New("the Leases of shards have not been read yet")
		}

		return nil
	})

	return leases
}

// Follow does the same as [Watch], but keeps no Lease: the index stores a fraction of each Lease, and with thousands of
// shards, a cache of Leases would be most of a service's memory. Nothing may then read Leases from the manager's
// client. Like caches, the watch starts before the controllers, which wait for it, and ends after them.
func Follow(mgr manager.Manager, ready AddReady, index *membership.Index) (toolscache.DoneChecker, error) {
	c, err := client.NewWithWatch(mgr.GetConfig(), client.Options{
		Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(), HTTPClient: mgr.GetHTTPClient(),
	})
	if err != nil {
		return nil, fmt.Errorf("follow the Leases of shards: %w", err)
	}

	f := newFollower(c, index)

	f.Cache = mgr.GetCache()
	if err := mgr.Add(f); err != nil {
		return nil, fmt.Errorf("follow the Leases of shards: %w", err)
	}

	return awaited(ready, f), nil
}

// follower tells an index of all Leases of shards. For the manager it is a cache, so that it is started and awaited as
// one. For a reflector of client-go it is the store.
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

// Name and Done implement [toolscache.DoneChecker].
func (*follower) Name() string { return "Leases of shards" }

// Done returns a channel that is closed when all Leases have been seen that existed at the start.
func (f *follower) Done() <-chan struct{} { return f.listed }

// GetCache makes the manager treat the follower as a cache.
func (f *follower) GetCache() cache.Cache { return f }

// WaitForCacheSync waits until all Leases that existed at the start have been seen; it returns false if ctx ends
// before.
func (f *follower) WaitForCacheSync(ctx context.Context) bool { return toolscache.WaitFor(ctx, "", f) }

// Start follows the Leases until ctx ends.
func (f *follower) Start(ctx context.Context) error {
	source := Source(&toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			var list coordinationv1.LeaseList
			return &list, f.client.List(ctx, &list, ofShards, raw(&opts))
		},
		WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			return f.client.Watch(ctx, &coordinationv1.LeaseList{}, ofShards, raw(&opts))
		},
	})

	toolscache.NewReflectorWithOptions(source, &coordinationv1.Lease{}, f, toolscache.ReflectorOptions{
		Name:    f.Name(),
		Backoff: &wait.Backoff{Duration: 200 * time.Millisecond, Factor: 2, Jitter: 0.2, Steps: 9, Cap: 30 * time.Second},
	}).RunWithContext(ctx)

	return nil
}

// ofShards selects the Leases of shards among all of a cluster.
var ofShards = client.HasLabels{contract.LabelClusterRing}

func raw(opts *metav1.ListOptions) *client.ListOptions {
	return &client.ListOptions{Limit: opts.Limit, Continue: opts.Continue, Raw: opts}
}

var _ toolscache.TransformingStore = (*follower)(nil)

// Transformer lets the reflector keep less of the Leases that it collects for Replace.
func (*follower) Transformer() toolscache.TransformFunc { return Slim }

// Slim is [lease.Slim] for a cache.
func Slim(obj any) (any, error) {
	if l, ok := obj.(*coordinationv1.Lease); ok {
		return lease.Slim(l), nil
	}

	return obj, nil
}

// Add reports a Lease that has appeared.
func (f *follower) Add(obj any) error { return f.Update(obj) }

// Update reports a Lease that has changed.
func (f *follower) Update(obj any) error {
	if l, ok := obj.(*coordinationv1.Lease); ok {
		f.index.Upsert(l)
	}

	return nil
}

// Delete reports a Lease that is gone.
func (f *follower) Delete(obj any) error {
	if l, ok := obj.(*coordinationv1.Lease); ok {
		f.index.Delete(client.ObjectKeyFromObject(l))
	}

	return nil
}

// Replace reports all Leases, and thereby those that are gone.
func (f *follower) Replace(all []any, _ string) error {
	leases := make([]*coordinationv1.Lease, 0, len(all))

	for _, obj := range all {
		if l, ok := obj.(*coordinationv1.Lease); ok {
			leases = append(leases, l)
		}
	}

	f.index.Replace(leases)
	f.seen()

	return nil
}

// Resync has nothing to do.
func (*follower) Resync() error { return nil }
