// Package embedded lets the shards of a ring do without services of their own: they elect one of themselves, and the
// elected one also runs the sharder of the ring.
//
//	err := embedded.AddTo(mgr, embedded.Options{Ring: "example"}) // mgr is that of shard.NewManager
//
// The sharder is what the services leasemonitor and rebalancer run, for this one ring. There is no webhook: new objects
// are created without a shard, and the sharder assigns them when its watch reports them. It reads and writes with the
// rights of the program, which needs more rights than a shard: see docs/embedded.md. The ring is a ClusterRing with
// spec.sharder Embedded.
//
// # Guarantees
//
//  1. What is guaranteed for objects of a ring holds as with the services, except that an object is created without a
//     shard.
//  2. At most one sharder works on a ring, be it embedded or the services, also while spec.sharder changes.
//  3. A process that is no longer elected sends no write of the sharder any more. Its own work as a shard goes on.
package embedded

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/clusterring"
	"github.com/clusterring/clusterring/services/internal/kit"
	"github.com/clusterring/clusterring/services/leasemonitor"
	"github.com/clusterring/clusterring/services/rebalancer"
)

const (
	// checkTimeout bounds the requests of AddTo.
	checkTimeout = 10 * time.Second
	// namespaceFile contains the namespace of the Pod.
	namespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
)

// Options describe the ring, and how its shards elect the sharder. The zero value lacks only the ring's name.
type Options struct {
	// Ring is the name of the ring. Required.
	Ring string
	// Namespace is where the shards of the ring hold their Leases, and where the Lease of the election is. Default: the
	// namespace of the Pod; required outside a cluster.
	Namespace string

	// LeaseDuration is how long the other shards wait after the elected one has vanished, in whole seconds. Default: 15
	// seconds.
	LeaseDuration time.Duration
	// RenewDeadline is how long the elected shard tries to renew its Lease. It may write until it has not renewed it for
	// this time, or for LeaseDuration less RetryPeriod if that is longer. Must be less than LeaseDuration. Default: two
	// thirds of LeaseDuration.
	RenewDeadline time.Duration
	// RetryPeriod is the time between attempts to acquire or renew the Lease. Must be less than RenewDeadline / 1.2.
	// Default: two fifteenths of LeaseDuration.
	RetryPeriod time.Duration
}

// AddTo adds the sharder of the ring to a manager, which is usually that of a shard, but need not be. It starts with
// the manager, in every process that calls AddTo, stands for election, and works while it is elected. Call it once,
// before the manager starts. The manager needs no leader election for it, no scheme, and no cache: the sharder has its
// own.
//
// AddTo makes a few requests, for 10 seconds at most. It returns an error if the options are invalid, or if the ring
// does not exist. A ring whose spec.sharder is not Embedded is no error: the sharder then stands by until that changes,
// so that the program can be rolled out first.
func AddTo(mgr manager.Manager, o Options) error {
	if err := addTo(mgr, o); err != nil {
		return fmt.Errorf("add the embedded sharder of ring %q: %w", o.Ring, err)
	}

	return nil
}

func addTo(mgr manager.Manager, o Options) error {
	o, err := o.complete(os.ReadFile)
	if err != nil {
		return err
	}

	log := mgr.GetLogger().WithName("sharder").WithValues("ring", o.Ring)
	self := clusterring.Embedded(o.Ring, o.Namespace)

	e := &kit.Embedding{
		Name: self.Lease.Name, Namespace: o.Namespace, Ring: o.Ring, Config: mgr.GetConfig(), Log: log,
		LeaseDuration: o.LeaseDuration, RenewDeadline: o.RenewDeadline, RetryPeriod: o.RetryPeriod,
		Setup: func(ctx context.Context, rt *kit.Runtime) error {
			return errors.Join(leasemonitor.Embed(ctx, rt, self), rebalancer.Embed(ctx, rt, self))
		},
	}

	ctx, cancel := context.WithTimeout(context.Background(), checkTimeout)
	defer cancel()

	ring, err := e.Check(ctx)
	if err != nil {
		return err
	}

	if !self.Wanted(ring) {
		log.Info("Another sharder than this one is to work on the ring: standing by", "spec.sharder",
			cmp.Or(ring.Spec.Sharder, v1alpha1.SharderServices),
			"spec.shardNamespaces", ring.Spec.ShardNamespaces, "namespace", o.Namespace)
	}

	return mgr.Add(runnable{e}) //nolint:wrapcheck // AddTo wraps it
}

// complete fills in defaults, and validates what the election does not. read reads a file.
func (o Options) complete(read func(string) ([]byte, error)) (Options, error) {
	if o.Ring == "" {
		return o, errors.New("ring: set its name")
	}

	if o.Namespace == "" {
		content, err := read(namespaceFile)
		if o.Namespace = strings.TrimSpace(string(content)); err != nil || o.Namespace == "" {
			return o, errors.New("namespace: set it, outside of a Pod it is not known")
		}
	}

	o.LeaseDuration = cmp.Or(o.LeaseDuration, 15*time.Second)
	o.RenewDeadline = cmp.Or(o.RenewDeadline, o.LeaseDuration*2/3)
	o.RetryPeriod = cmp.Or(o.RetryPeriod, o.LeaseDuration*2/15)

	return o, nil
}

// runnable runs the sharder as often as its process is elected.
type runnable struct{ *kit.Embedding }

// NeedLeaderElection makes the manager start it in every process, whether that holds its Lease as a shard or not: a
// ring whose shards all wait for their Leases needs a sharder, too.
func (runnable) NeedLeaderElection() bool { return false }

// Start runs until ctx ends. A sharder that fails does not end the program, which is a shard besides, and may be
// elected again.
func (r runnable) Start(ctx context.Context) error {
	pauses := wait.Backoff{Duration: time.Second, Factor: 2, Jitter: 0.2, Steps: 6, Cap: 30 * time.Second}

	_ = pauses.DelayWithReset(clock.RealClock{}, time.Minute).Until(ctx, true, true,
		func(context.Context) (done bool, err error) {
			err = r.Run(ctx)

			switch {
			case ctx.Err() == nil:
				r.Log.Error(err, "The sharder has stopped; this process will stand for election again")
			case err != nil:
				r.Log.Error(err, "The sharder has failed while it was being stopped")
			}

			return false, nil
		}) // the error is that of ctx

	return nil
}
