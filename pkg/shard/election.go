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
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/pkg/shard/internal/elect"
)

var (
	errNoElection = errors.New("the election for what runs in one replica was lost")
	errKept       = errors.New("the Lease is not released, because workers may still run: it expires")
)

// election decides in which replica that runs which runs in one. It is a leader election as a manager without shards
// has one, and its lock: the Lease is released only after all work has ended.
type election struct {
	*resourcelock.LeaseLock

	elector *elect.Election
	// begin is closed when this process may stand for election: a standby would have no caches.
	begin <-chan struct{}
	// exit ends the process.
	exit  func(error)
	clock clock.WithDelayedExecution
	crew  crew
	// renewed is before the last write was sent that has taken or renewed the Lease. Read when the election has ended.
	renewed time.Time
}

func newElection(config *rest.Config, s *Shard, begin <-chan struct{}) (*election, error) {
	lease := types.NamespacedName{Namespace: s.Namespace(), Name: LeaseName(s.Ring())}

	lock, err := elect.Lock(config, lease, cmp.Or(s.options.Pod, s.options.Name)+"_"+string(uuid.NewUUID()),
		elect.RenewDeadline)
	if err != nil {
		return nil, fmt.Errorf("what runs in one replica: %w", err)
	}

	e := &election{LeaseLock: lock, begin: begin, exit: s.term.exit, clock: clock.RealClock{}}

	e.elector, err = elect.New(leaderelection.LeaderElectionConfig{
		Lock: e, LeaseDuration: elect.LeaseDuration, RenewDeadline: elect.RenewDeadline, RetryPeriod: elect.RetryPeriod,
		ReleaseOnCancel: true,
	})

	return e, err
}

func (e *election) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return e.wrote(record, e.LeaseLock.Create(ctx, record))
}

// Update implements [resourcelock.Interface]. Elections also release what they could not renew, while workers may run.
func (e *election) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if record.HolderIdentity == "" && !e.crew.isIdle() {
		return errKept
	}

	return e.wrote(record, e.LeaseLock.Update(ctx, record))
}

// wrote notes the result of a write. The renewTime is from the clock before that, with its monotonic time.
func (e *election) wrote(record resourcelock.LeaderElectionRecord, err error) error {
	if err == nil && record.HolderIdentity != "" {
		e.renewed = record.RenewTime.Time
	}

	return err
}

// Start takes part in the election until ctx ends. It releases the Lease after what runs in one replica has stopped.
func (e *election) Start(ctx context.Context) error {
	if !waitFor(ctx, e.begin) {
		return nil
	}

	electing, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()

	go e.elector.Run(electing)

	select {
	case <-e.elector.Lost:
		return e.lose()
	case <-ctx.Done():
	}

	select {
	case <-e.elector.Lost:
		return e.lose()
	case <-e.crew.dismiss():
	}

	stop()
	<-e.elector.Lost

	return nil
}

// lose ends the work because the Lease is lost, and returns why the manager ends. The manager waits for its workers. If
// one ignores that its context ends, another replica would soon work at the same time: so the process ends when the
// Lease may be taken.
func (e *election) lose() error {
	idle := e.crew.dismiss()
	err := fmt.Errorf("%w: the Lease %s was not renewed for %s, or another replica has taken it", errNoElection,
		e.Describe(), elect.RenewDeadline)

	e.clock.AfterFunc(e.renewed.Add(elect.LeaseDuration).Sub(e.clock.Now()), func() {
		if !closed(idle) {
			e.exit(fmt.Errorf("%w, and its work has not stopped", err))
		}
	})

	return err
}

// NeedLeaderElection reports false: it does not depend on the shard's Lease.
func (*election) NeedLeaderElection() bool { return false }

// crew counts what works. After it was dismissed, nothing more begins. The zero value is ready to use.
type crew struct {
	mu        sync.Mutex
	dismissed bool
	working   int
	idle      chan struct{} // closed when nothing works any more; nil before the crew is dismissed
}

// enter reports whether work may begin; if so, end it by leave.
func (c *crew) enter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()

	if !c.dismissed {
		c.working++
	}

	return !c.dismissed
}

func (c *crew) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()

	if c.working--; c.dismissed && c.working == 0 {
		close(c.idle)
	}
}

// dismiss lets nothing more begin. It returns a channel that is closed when nothing works.
func (c *crew) dismiss() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()

	if !c.dismissed {
		c.dismissed, c.idle = true, make(chan struct{})
		if c.working == 0 {
			close(c.idle)
		}
	}

	return c.idle
}

func (c *crew) isIdle() bool { return closed(c.dismiss()) }

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
