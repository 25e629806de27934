package shard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/pkg/shard/internal/elect"
)

var errNoElection = errors.New("the election for what runs in one replica was lost")

// election decides in which replica that runs which runs in one. It is a leader election as a manager without shards has one.
type election struct {
	name    string
	elector *leaderelection.LeaderElector
	elected <-chan struct{}
	// begin is closed when this process may stand for election: a standby would have no caches.
	begin <-chan struct{}
	// exit ends the process.
	exit  func(error)
	clock clock.WithDelayedExecution
	crew  crew

	mu      sync.Mutex
	renewed time.Time // when the last write was sent that has taken or renewed the Lease
}

func newElection(config *rest.Config, s *Shard, begin <-chan struct{}) (*election, error) {
	lease := types.NamespacedName{Namespace: s.Namespace(), Name: LeaseName(s.Ring())}
	e := &election{name: lease.String(), begin: begin, exit: s.term.exit, clock: clock.RealClock{}}

	elector, elected, err := elect.New(config, elect.Options{
		Lease: lease, Identity: cmp.Or(s.options.Pod, s.options.Name) + "_" + string(uuid.NewUUID()),
		LeaseDuration: elect.LeaseDuration, RenewDeadline: elect.RenewDeadline, RetryPeriod: elect.RetryPeriod, ReleaseOnCancel: true,
		MayRelease: e.crew.isIdle, Renewed: e.renew,
	})
	if err != nil {
		return nil, fmt.Errorf("what runs in one replica: %w", err)
	}

	e.elector, e.elected = elector, elected

	return e, nil
}

// Start takes part in the election until ctx ends. It releases the Lease after all that runs in one replica has stopped.
func (e *election) Start(ctx context.Context) error {
	if !waitFor(ctx, e.begin) {
		return nil
	}

	electing, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()

	lost := make(chan struct{})

	go func() {
		defer close(lost)
		e.elector.Run(electing)
	}()

	select {
	case <-lost:
		return e.lose()
	case <-ctx.Done():
	}

	select {
	case <-lost:
		return e.lose()
	case <-e.crew.dismiss():
	}

	stop()
	<-lost

	return nil
}

// lose ends the work because the Lease is lost, and returns why the manager ends. The manager waits for its workers. If one ignores that its context
// ends, another replica would soon work at the same time, and this one would never end: so the process ends when the Lease may be taken.
func (e *election) lose() error {
	idle := e.crew.dismiss()
	err := fmt.Errorf("%w: the Lease %s was not renewed for %s, or another replica has taken it", errNoElection, e.name, elect.RenewDeadline)

	e.clock.AfterFunc(max(e.remains(elect.LeaseDuration), 0), func() {
		if !closed(idle) {
			e.exit(fmt.Errorf("%w, and its work has not stopped", err))
		}
	})

	return err
}

// renew records that a write was sent that has taken or renewed the Lease.
func (e *election) renew(sent time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()

	e.renewed = sent
}

// remains returns how much is left of the duration since the Lease was last taken or renewed. It may be negative.
func (e *election) remains(of time.Duration) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()

	return e.renewed.Add(of).Sub(e.clock.Now())
}

// NeedLeaderElection reports false: it does not depend on the shard's Lease.
func (*election) NeedLeaderElection() bool { return false }
