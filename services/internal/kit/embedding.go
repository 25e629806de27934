package kit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/leases"
)

const (
	// embeddedQPS and embeddedBurst limit the requests of an embedded service, as the defaults of the flags do for one of
	// its own.
	embeddedQPS, embeddedBurst = 100, 200
	// embeddedGrace is unused while embedded services end only when their workers have ended; it must be positive.
	embeddedGrace = 30 * time.Second
)

// Embedding describes services that run inside another program, for one ring, with the rights of that program. Any
// number of processes may run them. One works, and the others stand by. All fields are required.
//
// # Invariants
//
//  1. No request that writes leaves this process unless it holds the leader Lease, and its term has not ended. The
//     program goes on without the services when the Lease is lost, and nothing of theirs may go on with it. The only
//     exception is [Runtime.Ungated].
//  2. Nothing is read but the ring, the Leases of the ring in one namespace, and what Setup reads beyond the manager's
//     cache.
//  3. Nothing of the process is changed: no logger, no handler of signals, no server.
type Embedding struct {
	// Name is that of the leader Lease, and the user agent.
	Name string
	// Namespace contains the leader Lease, and the Leases of the shards.
	Namespace string
	// Ring is the name of the ring.
	Ring string
	// Config says how to reach the API server. Its limits of requests do not apply.
	Config *rest.Config
	// LeaseDuration, RenewDeadline, and RetryPeriod are those of the leader Lease, as in [Options].
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration
	// Log is the logger of the services.
	Log logr.Logger
	// Setup adds the services' controllers to the manager, as that of a [Service].
	Setup func(ctx context.Context, rt *Runtime) error
}

func (e *Embedding) options() *Options {
	return &Options{
		Namespace: e.Namespace, MetricsBindAddress: "0", HealthProbeBindAddress: "0",
		KubeAPIQPS: embeddedQPS, KubeAPIBurst: embeddedBurst, ShutdownGrace: embeddedGrace,
		LeaderElect: true, LeaderElectLeaseDuration: e.LeaseDuration, LeaderElectRenewDeadline: e.RenewDeadline,
		LeaderElectRetryPeriod: e.RetryPeriod,
	}
}

// Run runs the services until ctx ends, and then returns nil, or until they fail or the leader Lease is lost, which it
// returns as an error. When it returns, nothing of them runs any more. It may be called again.
func (e *Embedding) Run(ctx context.Context) error {
	config := rest.CopyConfig(e.Config)
	config.QPS, config.Burst, config.RateLimiter = embeddedQPS, embeddedBurst, nil
	config.UserAgent = e.Name + "/" + Version
	config.Wrap(leases.Bound)

	r := &running{
		service: Service{Name: e.Name, LeaderElection: true, Setup: e.Setup}, options: e.options(),
		log: e.Log, draining: newLatch(), embedding: e,
	}

	managerCtx, stop := context.WithCancel(ctrllog.IntoContext(context.WithoutCancel(ctx), e.Log))
	defer stop()

	if err := r.prepare(managerCtx, config); err != nil {
		return err
	}

	return r.supervise(ctx, managerCtx, stop)
}

// ended waits until nothing of an embedded service runs any more that is being stopped, for a reason if there is one.
func (r *running) ended(ctx context.Context, done <-chan error, reason error) error {
	err := r.failed(<-done)
	if ctx.Err() != nil && reason == nil && errors.Is(err, context.Canceled) {
		return nil // it was told to stop while it waited for its caches
	}

	return errors.Join(reason, err)
}

// restrict restricts a manager to the ring. It returns the config that its clients use.
func (e *Embedding) restrict(config *rest.Config, o *manager.Options, leader *leadership) *rest.Config {
	o.Cache.ByObject = map[client.Object]cache.ByObject{
		&coordinationv1.Lease{}: {
			Namespaces: map[string]cache.Config{e.Namespace: {}},
			Label:      labels.SelectorFromSet(labels.Set{contract.LabelClusterRing: e.Ring}),
			Transform:  leases.Slim,
		},
		&v1alpha1.ClusterRing{}: {Field: fields.OneTermEqualSelector("metadata.name", e.Ring),
			Transform: selectNamespaces(nil)},
	}

	return gated(config, leader)
}

// oneNamespace lists Leases in one namespace, where the caller means all in which it may.
type oneNamespace struct {
	client.Reader
	namespace string
}

// List implements [client.Reader].
func (r oneNamespace) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if _, ok := list.(*coordinationv1.LeaseList); ok {
		opts = append(slices.Clip(opts), client.InNamespace(r.namespace))
	}

	return r.Reader.List(ctx, list, opts...) //nolint:wrapcheck // the reader's own answer
}

// Check returns the ring, after a few requests, or everything that is wrong with the namespace and the times, or why
// there is no ring to work on.
func (e *Embedding) Check(ctx context.Context) (*v1alpha1.ClusterRing, error) {
	if err := e.options().validateEmbedded(); err != nil {
		return nil, err
	}

	if err := preflight(ctx, e.Config); err != nil {
		return nil, err
	}

	c, err := client.New(e.Config, client.Options{Scheme: newScheme()})
	if err != nil {
		return nil, fmt.Errorf("prepare a client for %s: %w", e.Config.Host, err)
	}

	ring := &v1alpha1.ClusterRing{}
	err = c.Get(ctx, client.ObjectKey{Name: e.Ring}, ring)

	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("ClusterRing %s does not exist: create it, with spec.sharder %s",
			e.Ring, v1alpha1.SharderEmbedded)
	case apierrors.IsForbidden(err):
		return nil, fmt.Errorf("read ClusterRing %s: %w; check the name, and grant get, list, watch, and patch on this "+
			"ring, as deploy/example-embedded does", e.Ring, err)
	case err != nil:
		return nil, fmt.Errorf("read ClusterRing %s: %w", e.Ring, err)
	}

	return ring, nil
}
