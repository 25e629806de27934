package shardleases

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	watchtools "k8s.io/client-go/tools/watch"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/kit"
	"github.com/clusterring/clusterring/services/internal/membership"
)

// leasePage is how many Leases are read at a time: about half a MiB.
const leasePage = 500

// followBackoff spaces out attempts to read Leases: 0.2 s to 30 s, reset by a list that succeeds.
var followBackoff = wait.Backoff{Duration: 200 * time.Millisecond, Factor: 2, Jitter: 0.2, Steps: 9, Cap: 30 * time.Second}

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

	f := newFollower(c, index, rt.Clock)

	f.Cache = rt.Manager.GetCache()
	if err := rt.Manager.Add(f); err != nil {
		return nil, fmt.Errorf("follow the Leases of shards: %w", err)
	}

	return synced(rt, f), nil
}

// follower tells an index of all Leases of shards. For the manager it is a cache, so that it is started and awaited as one.
type follower struct {
	cache.Cache

	client client.WithWatch
	index  *membership.Index
	clock  clock.Clock
	// listed is closed by seen, when all Leases have been seen that there were.
	listed chan struct{}
	seen   func()
}

func newFollower(c client.WithWatch, index *membership.Index, clk clock.Clock) *follower {
	listed := make(chan struct{})
	return &follower{client: c, index: index, clock: clk, listed: listed, seen: sync.OnceFunc(func() { close(listed) })}
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
	next := followBackoff

	for ctx.Err() == nil {
		listed, reason := f.once(ctx)
		if listed {
			next = followBackoff
		}
		f.pause(ctx, reason, next.Step())
	}

	return nil
}

// pause says why the Leases have to be read again, and waits; neither at the end.
func (f *follower) pause(ctx context.Context, reason error, d time.Duration) {
	if ctx.Err() != nil {
		return
	}
	log.FromContext(ctx).Info("The Leases of shards have to be read again", "reason", reason.Error())

	select {
	case <-ctx.Done():
	case <-f.clock.After(d):
	}
}

// once lists and watches until the watch ends. It reports whether the list succeeded, and why it ended.
func (f *follower) once(ctx context.Context) (listed bool, reason error) {
	var version string
	f.index.Batch(func() { version, reason = f.list(ctx) })

	if reason != nil {
		return false, reason
	}
	f.seen()

	return true, f.watch(ctx, version)
}

// list tells the index of all Leases, page by page, and then of those that are gone. It returns where a watch can go on.
func (f *follower) list(ctx context.Context) (version string, err error) {
	seen := sets.New[types.NamespacedName]()
	options := &client.ListOptions{LabelSelector: shardLeases(), Limit: leasePage}

	for {
		var page coordinationv1.LeaseList
		if err := f.client.List(ctx, &page, options); err != nil {
			return "", fmt.Errorf("list the Leases of shards: %w", err)
		}

		for i := range page.Items {
			f.index.Upsert(&page.Items[i])
			seen.Insert(client.ObjectKeyFromObject(&page.Items[i]))
		}

		if options.Continue = page.Continue; options.Continue == "" {
			f.index.Retain(seen.Has)
			return page.ResourceVersion, nil
		}
	}
}

// watch tells the index what changes from the version on, and returns why the Leases have to be listed again.
func (f *follower) watch(ctx context.Context, version string) error {
	w, err := watchtools.NewRetryWatcherWithContext(ctx, version, opener{f})
	if err != nil {
		return fmt.Errorf("watch the Leases of shards: %w", err)
	}
	defer func() {
		w.Stop()
		<-w.Done()
	}()

	for event := range w.ResultChan() {
		l, ok := event.Object.(*coordinationv1.Lease)
		//exhaustive:ignore
		switch {
		case event.Type == watch.Error:
			return fmt.Errorf("watch the Leases of shards: %w", apierrors.FromObject(event.Object))
		case !ok:
		case event.Type == watch.Deleted:
			f.index.Delete(client.ObjectKeyFromObject(l))
		case event.Type == watch.Added, event.Type == watch.Modified:
			f.index.Upsert(l)
		}
	}

	return errors.New("the watch has ended")
}

// opener lets the retrying watcher of client-go open watches.
type opener struct{ *follower }

// WatchWithContext opens a watch.
func (o opener) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	options.AllowWatchBookmarks = true
	return o.client.Watch(ctx, &coordinationv1.LeaseList{}, &client.ListOptions{LabelSelector: shardLeases(), Raw: &options}) //nolint:wrapcheck // client-go looks at it
}

// shardLeases selects the Leases of shards among all of a cluster.
func shardLeases() labels.Selector {
	selector, err := labels.Parse(v1alpha1.LabelClusterRing)
	if err != nil {
		panic(err) // a constant
	}

	return selector
}
