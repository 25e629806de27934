package adopt

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/pkg/shard"
	"github.com/clusterring/clusterring/pkg/shard/internal/elect"
	"github.com/clusterring/clusterring/pkg/shard/internal/within"
)

// election decides in which replica that runs which runs in one. It is a leader election as a manager without shards has one.
type election struct {
	name    string
	elector *leaderelection.LeaderElector
	elected <-chan struct{}
	// exit ends the process.
	exit  func(error)
	clock clock.WithDelayedExecution

	mu      sync.Mutex
	ended   bool
	renewed time.Time // when the last write was sent that has taken or renewed the Lease
	working int
	left    *sync.Cond // signalled when working becomes less
}

func newElection(config *rest.Config, s *shard.Shard) (*election, error) {
	lease := types.NamespacedName{Namespace: s.Namespace(), Name: LeaseName(s.Ring())}

	e := &election{name: lease.String(), exit: shard.ExitOf(s, within.Key{}), clock: clock.RealClock{}}
	e.left = sync.NewCond(&e.mu)

	elector, elected, err := elect.New(config, elect.Options{
		// A slot has one name for successive processes, which may both run for a moment.
		Lease: lease, Identity: s.Name() + "_" + string(uuid.NewUUID()),
		LeaseDuration: elect.LeaseDuration, RenewDeadline: elect.RenewDeadline, RetryPeriod: elect.RetryPeriod, ReleaseOnCancel: true,
		MayRelease: e.mayRelease, Renewed: e.renew,
	})
	if err != nil {
		return nil, fmt.Errorf("what runs in one replica: %w", err)
	}

	e.elector, e.elected = elector, elected

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
		return e.lose()
	case <-ctx.Done():
	}

	e.end()

	select {
	case <-lost:
		return e.lose()
	case <-e.stopped():
	}

	stop()
	<-lost

	return nil
}

// lose ends the work because the Lease is lost, and returns why the manager ends. The manager waits for its workers. If one ignores that its context
// ends, another replica would soon work at the same time, and this one would never end: so the process ends when the Lease may be taken.
func (e *election) lose() error {
	e.end()

	err := fmt.Errorf("%w: the Lease %s was not renewed for %s, or another replica has taken it", errNoElection, e.name, elect.RenewDeadline)

	e.clock.AfterFunc(max(e.remains(elect.LeaseDuration), 0), func() {
		if !e.idle() {
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

// mayRelease reports whether the Lease may be released. Nothing may begin while that happens.
func (e *election) mayRelease() bool {
	e.end()

	return e.idle()
}

// NeedLeaderElection reports false: it does not depend on the shard's Lease.
func (*election) NeedLeaderElection() bool { return false }

// end lets no more work begin.
func (e *election) end() {
	e.mu.Lock()
	defer e.mu.Unlock()

	e.ended = true
}

// stopped returns a channel that is closed when nothing of what runs in one replica runs here.
func (e *election) stopped() <-chan struct{} {
	done := make(chan struct{})

	go func() {
		defer close(done)
		e.mu.Lock()
		defer e.mu.Unlock()

		for e.working > 0 {
			e.left.Wait()
		}
	}()

	return done
}

// idle reports whether nothing of what runs in one replica runs here.
func (e *election) idle() bool {
	e.mu.Lock()
	defer e.mu.Unlock()

	return e.working == 0
}

// leave ends what enter has begun.
func (e *election) leave() {
	e.mu.Lock()
	defer e.mu.Unlock()

	e.working--
	e.left.Broadcast()
}

// enter reports whether work may begin; if so, end it by leave.
func (e *election) enter() bool {
	e.mu.Lock()
	defer e.mu.Unlock()

	if !e.ended {
		e.working++
	}

	return !e.ended
}
