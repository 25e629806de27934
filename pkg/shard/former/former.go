// Package former replaces a leader election by shards without a moment in which the elected leader and a shard work at
// the same time, in both directions. shard.NewManager uses it for the election in its options.
//
// The shards that replace an elected leader hold the Lease of its election together: all of them renew it with one
// identity, which consists of the ring's name. While a leader of the former version holds the Lease, the shards wait:
// they get objects and acknowledge drains, but do not reconcile. While any shard renews it, no leader of the former
// version is elected. So a rolling update may mix both versions, and so may a rollback:
//
//	e, err := former.New(config, former.Options{Ring: "example", Namespace: s.Namespace(), Name: "example-leader"})
//	err = mgr.Add(e)
//	builder.Complete(s.Reconciler(client, &v1.Website{}, e.Reconciler(reconciler)))
//
// After the last shard has stopped, the Lease expires: its duration passes before a leader of the former version works.
// Nobody releases it, because no shard knows whether it is the last one.
package former

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/shard/internal/elect"
)

const (
	// recheck is when a reconcile that waits for the Lease is tried again.
	recheck = 2 * time.Second

	identityPrefix = "clusterring:"
)

// ErrLost is the error of an election whose Lease was lost: for longer than the renew deadline, it could not be
// renewed. The process must end.
var ErrLost = errors.New("the Lease of the former leader election was lost")

// Options name a leader election. The durations are those that the shards announce in its Lease.
type Options struct {
	// Ring is the name of the shards' ring. Required.
	Ring string
	// Namespace and Name are those of the Lease; the name is what controller-runtime calls LeaderElectionID. Required.
	Namespace, Name string
	// LeaseDuration, RenewDeadline, and RetryPeriod are those of a leader election. Default: 15, 10, and 2 seconds.
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration
}

// Election is this process as one of those that hold the Lease of a former leader election together. [New] creates it.
// It is a runnable of a manager; a program without a manager calls Start itself. It is safe for concurrent use.
type Election struct {
	options Options
	elector *elect.Election
	ended   atomic.Bool // the Lease is not renewed any more
}

// New returns the election that the options describe. It does not access the API server. The process needs the
// permissions of a leader election: get, create, and update on the Lease.
func New(config *rest.Config, options Options) (*Election, error) {
	if options.Ring == "" || options.Namespace == "" || options.Name == "" {
		return nil, errors.New("former leader election: set Ring, and Namespace and Name of the Lease")
	}

	// In the proportion of the defaults.
	options.LeaseDuration = cmp.Or(options.LeaseDuration, elect.LeaseDuration)
	options.RenewDeadline = cmp.Or(options.RenewDeadline, min(elect.RenewDeadline, options.LeaseDuration*2/3))
	options.RetryPeriod = cmp.Or(options.RetryPeriod, min(elect.RetryPeriod, options.RenewDeadline/5))

	lease := types.NamespacedName{Namespace: options.Namespace, Name: options.Name}

	lock, err := elect.Lock(config, lease, Identity(options.Ring), options.RenewDeadline)
	if err != nil {
		return nil, fmt.Errorf("former leader election: %w", err)
	}

	elector, err := elect.New(leaderelection.LeaderElectionConfig{
		Lock: &shared{LeaseLock: lock, clock: clock.RealClock{},
			margin: options.LeaseDuration - options.RenewDeadline},
		LeaseDuration: options.LeaseDuration, RenewDeadline: options.RenewDeadline, RetryPeriod: options.RetryPeriod,
	})
	if err != nil {
		return nil, fmt.Errorf("former leader election: %w", err)
	}

	return &Election{options: options, elector: elector}, nil
}

// Identity returns the holder of the Lease while shards of the ring hold it.
func Identity(ring string) string { return identityPrefix + ring }

// Start takes the Lease, or joins the shards that hold it, and renews it until ctx ends. It does not release it. If the
// Lease is lost, Start returns an [ErrLost]. Call it once; the context must end last. A manager ends it after its
// controllers.
func (e *Election) Start(ctx context.Context) error {
	defer e.ended.Store(true)

	log := klog.FromContext(ctx).WithValues("lease", klog.KRef(e.options.Namespace, e.options.Name))
	log.Info("Waiting for the end of the former leader election; reconciling nothing until then")

	go e.elector.Run(ctx)

	select {
	case <-e.elector.Lost:
	case <-e.elector.Held:
		log.Info("The shards hold the Lease of the former leader election: no leader is elected",
			"identity", Identity(e.options.Ring))
	}

	<-e.elector.Lost

	if ctx.Err() != nil {
		return nil // it was asked to end
	}

	return fmt.Errorf("%w: %s/%s was not renewed for %s, or another process has taken it: see its holder, and whether "+
		"this process may update it",
		ErrLost, e.options.Namespace, e.options.Name, e.options.RenewDeadline)
}

// NeedLeaderElection reports false: the manager starts the election before it has the shard's Lease.
func (*Election) NeedLeaderElection() bool { return false }

// GetCache returns a cache that contains nothing. A manager starts whatever has a cache before its controllers, and
// stops it after the last of them has returned: until then, the Lease must be renewed.
func (*Election) GetCache() cache.Cache { return noCache{} }

type noCache struct{ cache.Cache }

// WaitForCacheSync reports true at once.
func (noCache) WaitForCacheSync(context.Context) bool { return true }

// Held returns a channel that is closed as soon as the shards hold the Lease. Work on nothing before that.
func (e *Election) Held() <-chan struct{} { return e.elector.Held }

// Reconciler wraps a reconciler so that it does nothing before the shards hold the Lease, or after it was lost: it then
// asks to be called again after 2 seconds. Wrap the result with Shard.Reconciler, which acknowledges drains meanwhile.
func (e *Election) Reconciler(inner reconcile.Reconciler) reconcile.Reconciler {
	return reconcile.Func(func(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
		select {
		case <-e.elector.Held:
			if !e.ended.Load() {
				return inner.Reconcile(ctx, request)
			}
		default:
		}

		return reconcile.Result{RequeueAfter: recheck}, nil
	})
}

// shared is the Lease of an election whose holders have one identity. Each of them renews it, so the writes of one are
// conflicts for the others, the more often the more they are. A renewal by another is as good: the Lease is held for
// all.
//
// Leader election calls the methods from one goroutine.
type shared struct {
	*resourcelock.LeaseLock

	clock clock.PassiveClock
	// margin is by how much others respect a renewal for longer than leader election counts on it.
	margin time.Duration
	// looked is when the Lease was last read or written, and renewed its renewTime then.
	looked  time.Time
	renewed metav1.Time
}

// Get reads the Lease.
func (l *shared) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	at := l.clock.Now()

	record, raw, err := l.LeaseLock.Get(ctx)
	if err == nil {
		l.looked, l.renewed = at, record.RenewTime
	}

	return record, raw, err //nolint:wrapcheck // leader election looks for NotFound
}

// Update writes the Lease. It succeeds without that if another holder has renewed the Lease since this process last
// looked at it. That may have been right after the look. Leader election counts from now on, so the look must not be
// older than the difference between how long it counts on a renewal, and how long others respect it.
func (l *shared) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	at := l.clock.Now()

	err := l.LeaseLock.Update(ctx, record)
	if err == nil {
		l.looked, l.renewed = at, metav1.NewTime(record.RenewTime.Truncate(time.Microsecond)) // as it is stored
	}

	if !apierrors.IsConflict(err) {
		return err //nolint:wrapcheck // leader election logs the Lease's name
	}

	looked, renewed := l.looked, l.renewed

	now, _, gone := l.Get(ctx)
	if gone == nil && now.HolderIdentity == l.Identity() && !now.RenewTime.Equal(&renewed) &&
		l.clock.Since(looked) < l.margin {
		return nil
	}

	return err //nolint:wrapcheck // leader election looks for Conflict
}
