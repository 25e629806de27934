// Package elect takes part in leader elections, and makes the clients that renew Leases.
package elect

import (
	"context"
	"fmt"
	"net"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// The durations of a leader election of controller-runtime.
const (
	LeaseDuration = 15 * time.Second
	RenewDeadline = 10 * time.Second
	RetryPeriod   = 2 * time.Second
)

// dialTimeout is that of client-go.
const dialTimeout = 30 * time.Second

// Client returns a client for Leases that are renewed until a deadline, on a connection of its own. The user agent of
// its requests ends with the given one. Without a deadline, requests have no time-out, so that watches last.
func Client(
	config *rest.Config, agent string, renewDeadline time.Duration,
) (*coordinationv1client.CoordinationV1Client, error) {
	config = rest.AddUserAgent(rest.CopyConfig(config), agent)
	if config.Timeout = 0; renewDeadline > 0 {
		// A single request that hangs must not cost the Lease.
		config.Timeout = max(renewDeadline/2, time.Second)
	}

	// A transport with a dialer shares no connection: a large list of a controller must not hold up a renewal.
	if config.Dial == nil {
		config.Dial = (&net.Dialer{Timeout: dialTimeout, KeepAlive: dialTimeout}).DialContext
	}

	// The Lease must not queue behind the writes of the controllers.
	config.QPS, config.RateLimiter = -1, nil

	client, err := coordinationv1client.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create the client for Leases: %w", err)
	}

	return client, nil
}

// Lock returns the Lease of an election to be held with the identity, and renewed until the deadline.
func Lock(
	config *rest.Config, lease types.NamespacedName, identity string, renewDeadline time.Duration,
) (*resourcelock.LeaseLock, error) {
	client, err := Client(config, "leader-election", renewDeadline)
	if err != nil {
		return nil, err
	}

	return &resourcelock.LeaseLock{
		LeaseMeta: metav1.ObjectMeta{Namespace: lease.Namespace, Name: lease.Name},
		Client:    client, LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
	}, nil
}

// Election is a leader election without callbacks. Call Run once: it returns at the end of its context, or of the
// Lease.
type Election struct {
	*leaderelection.LeaderElector

	// Held is closed as soon as this process is elected, and Lost when Run has ended.
	Held, Lost <-chan struct{}
}

// New returns the election that the configuration describes.
func New(o leaderelection.LeaderElectionConfig) (*Election, error) {
	held, lost := make(chan struct{}), make(chan struct{})
	o.Name = o.Lock.Describe()
	o.Callbacks = leaderelection.LeaderCallbacks{
		OnStartedLeading: func(context.Context) { close(held) },
		OnStoppedLeading: func() { close(lost) }, // also called if this process was never elected
	}

	elector, err := leaderelection.NewLeaderElector(o)
	if err != nil {
		return nil, fmt.Errorf("set up the election %s: %w", o.Name, err)
	}

	return &Election{LeaderElector: elector, Held: held, Lost: lost}, nil
}
