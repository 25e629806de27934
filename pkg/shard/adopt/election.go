package adopt

import (
	"context"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/clusterring/clusterring/pkg/shard"
)

// The durations are those of a leader election of controller-runtime.
const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
)

// election decides in which replica that runs which runs in one. It is a leader election as a manager without shards has one.
type election struct {
	name    string
	elector *leaderelection.LeaderElector
	elected chan struct{}

	mu      sync.Mutex
	ended   bool
	working sync.WaitGroup
}

func newElection(config *rest.Config, s *shard.Shard) (*election, error) {
	e := &election{name: s.Namespace() + "/" + LeaseName(s.Ring()), elected: make(chan struct{})}

	config = rest.AddUserAgent(rest.CopyConfig(config), "leader-election")
	config.Timeout = renewDeadline / 2 //nolint:mnd // as in controller-runtime

	c, err := coordinationv1client.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create the client of the election %s: %w", e.name, err)
	}

	e.elector, err = leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: s.Namespace(), Name: LeaseName(s.Ring())},
			Client:    c,
			// A slot has one name for successive processes, which may both run for a moment.
			LockConfig: resourcelock.ResourceLockConfig{Identity: s.Name() + "_" + string(uuid.NewUUID())},
		},
		Name: LeaseName(s.Ring()), LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod, ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { close(e.elected) },
			OnStoppedLeading: func() {}, // Start returns
		},
	})
	if err != nil {
		return nil, fmt.Errorf("set up the election %s: %w", e.name, err)
	}

	return e, nil
}

// Start takes part in the election until ctx ends. It releases the Lease after all that runs in one replica has stopped.
func (e *election) Start(ctx context.Context) error {
	electing, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()

	lost := make(chan struct{})

	go func() {
		defer close(lost)
		e.elector.Run(electing)
	}()

	select {
	case <-lost:
		return fmt.Errorf("%w: the Lease %s was not renewed for %s, or another replica has taken it", errNoElection, e.name, renewDeadline)
	case <-ctx.Done():
	}

	e.mu.Lock()
	e.ended = true
	e.mu.Unlock()
	e.working.Wait()
	stop()
	<-lost

	return nil
}

// NeedLeaderElection reports false: it does not depend on the shard's Lease.
func (*election) NeedLeaderElection() bool { return false }

// enter reports whether work may begin; if so, end it by e.working.Done.
func (e *election) enter() bool {
	e.mu.Lock()
	defer e.mu.Unlock()

	if !e.ended {
		e.working.Add(1)
	}

	return !e.ended
}
