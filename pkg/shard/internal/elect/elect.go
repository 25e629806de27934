// Package elect takes part in leader elections, and makes the clients that renew Leases.
package elect

import (
	"context"
	"fmt"
	"net"
	"time"

	"k8s.io/apimachinery/pkg/types"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/utils/clock"
)

// The durations of a leader election of controller-runtime.
const (
	LeaseDuration = 15 * time.Second
	RenewDeadline = 10 * time.Second
	RetryPeriod   = 2 * time.Second
)

// dialTimeout is that of client-go.
const dialTimeout = 30 * time.Second

// agent is the user agent of elections.
const agent = "leader-election"

// Client returns a client for Leases that are renewed until a deadline, on a connection of its own. The user agent of its requests ends with the given
// one. Without a deadline, requests have no time-out, so that watches last.
func Client(config *rest.Config, agent string, renewDeadline time.Duration) (*coordinationv1client.CoordinationV1Client, error) {
	config = rest.AddUserAgent(rest.CopyConfig(config), agent)
	if config.Timeout = 0; renewDeadline > 0 {
		// A single request that hangs must not cost the Lease.
		config.Timeout = max(renewDeadline/2, time.Second) //nolint:mnd // see above
	}

	// Transports with different dialers share no connection: a large list of a controller must not hold up a renewal.
	dial := config.Dial
	if dial == nil {
		dial = (&net.Dialer{Timeout: dialTimeout, KeepAlive: dialTimeout}).DialContext
	}

	config.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		return dial(ctx, network, address)
	}
	// The Lease must not queue behind the writes of the controllers.
	config.QPS, config.RateLimiter = -1, nil

	return coordinationv1client.NewForConfig(config) //nolint:wrapcheck // the caller says what for
}

// Options describe an election. All fields are required, except Shared, MayRelease, Renewed, and ReleaseOnCancel.
type Options struct {
	// Lease is the Lease of the election, Identity the holder that this process wants to be.
	Lease    types.NamespacedName
	Identity string
	// LeaseDuration, RenewDeadline, and RetryPeriod are those of the package leaderelection of client-go.
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration
	// Shared is true if several processes have this identity, and hold the Lease together.
	Shared bool
	// MayRelease reports whether the Lease may be released now; nil: always. Leader election also releases a Lease that it could not renew, while
	// workers may still run.
	MayRelease func() bool
	// Renewed is called with the time at which a write was sent that has taken or renewed the Lease. It requires MayRelease. Nil: nobody is told.
	Renewed func(sent time.Time)
	// ReleaseOnCancel is true if the Lease is released when the context of Run ends.
	ReleaseOnCancel bool
}

// New returns an election, and a channel that is closed as soon as this process is elected. Call Run of the election once: it returns when its context
// has ended, or when the Lease is lost.
func New(config *rest.Config, o Options) (*leaderelection.LeaderElector, <-chan struct{}, error) {
	client, err := Client(config, agent, o.RenewDeadline)
	if err != nil {
		return nil, nil, fmt.Errorf("create the client of the election %s: %w", o.Lease, err)
	}

	elected := make(chan struct{})

	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: o.lock(client, clock.RealClock{}),
		Name: o.Lease.Name, LeaseDuration: o.LeaseDuration, RenewDeadline: o.RenewDeadline, RetryPeriod: o.RetryPeriod, ReleaseOnCancel: o.ReleaseOnCancel,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { close(elected) },
			OnStoppedLeading: func() {}, // Run returns
		},
	})
	if err != nil {
		return nil, nil, fmt.Errorf("set up the election %s: %w", o.Lease, err)
	}

	return elector, elected, nil
}
