package kit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/clock"
)

// errStillWorking refuses a release of the leader Lease.
var errStillWorking = errors.New("the leader Lease is kept, because this process may still be working")

// leadership is the leader Lease as the manager's elector sees it, made safe in two ways that the elector is not:
//
//   - The elector releases the Lease at the end of every term, also when it failed to renew in time, while the controllers
//     still run. leadership lets a release pass only once the workers are gone.
//   - The elector notices a loss late: it goes on trying for its renew deadline after another process took the Lease, and
//     then waits for the release before it tells anybody, possibly for longer than the Lease lasts. leadership reports the
//     loss when it sees another holder, and before the Lease can have expired since the last renewal was sent.
type leadership struct {
	resourcelock.Interface
	workersGone *latch
	clock       clock.WithDelayedExecution
	// term is how long after a renewal was sent we may still act as the leader.
	term time.Duration
	// lost gets the reason, once.
	lost chan error

	mu     sync.Mutex
	leads  bool
	until  time.Time // when the term ends
	expiry clock.Timer
}

func newLeadership(config *rest.Config, name string, o *Options, workersGone *latch) (*leadership, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("determine the host name for the leader Lease: %w", err)
	}

	lock, err := resourcelock.NewFromKubeconfig(resourcelock.LeasesResourceLock, o.Namespace, name,
		resourcelock.ResourceLockConfig{Identity: host + "_" + string(uuid.NewUUID())}, config, o.LeaderElectRenewDeadline)
	if err != nil {
		return nil, fmt.Errorf("prepare the leader Lease %s/%s: %w", o.Namespace, name, err)
	}

	return &leadership{
		Interface:   lock,
		workersGone: workersGone,
		clock:       clock.RealClock{},
		term:        max(o.LeaderElectRenewDeadline, o.LeaderElectLeaseDuration-o.LeaderElectRetryPeriod),
		lost:        make(chan error, 1),
	}, nil
}

// Get implements resourcelock.Interface.
func (l *leadership) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.Interface.Get(ctx)
	if err == nil && record.HolderIdentity != l.Identity() {
		l.lose(fmt.Sprintf("%q holds it now", record.HolderIdentity))
	}

	return record, raw, err //nolint:wrapcheck // the elector asks for the API's own errors
}

// Create implements resourcelock.Interface.
func (l *leadership) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	sent := l.clock.Now()

	err := l.Interface.Create(ctx, record)
	if err == nil {
		l.renewed(sent)
	}

	return err //nolint:wrapcheck // the elector asks for the API's own errors
}

// Update implements resourcelock.Interface: it acquires, renews, and, without a holder, releases the Lease.
func (l *leadership) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if record.HolderIdentity == "" {
		return l.release(ctx, record)
	}

	sent := l.clock.Now()

	err := l.Interface.Update(ctx, record)
	if err == nil {
		l.renewed(sent)
	}

	return err //nolint:wrapcheck // the elector asks for the API's own errors
}

// holds reports whether this process may act as the leader now. A process that was suspended may ask before the timer of its term has fired.
func (l *leadership) holds() bool {
	l.mu.Lock()
	defer l.mu.Unlock()

	return l.leads && l.clock.Now().Before(l.until)
}

func (l *leadership) release(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if !l.workersGone.closed() {
		l.lose("it could not be renewed in time")
		return errStillWorking
	}
	l.mu.Lock()
	l.endTerm()
	l.mu.Unlock()

	return l.Interface.Update(ctx, record) //nolint:wrapcheck // the elector asks for the API's own errors
}

// renewed begins the next term, counted from when the request was sent: the server may have stored it that early.
func (l *leadership) renewed(sent time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.endTerm()
	l.leads, l.until = true, sent.Add(l.term)
	l.expiry = l.clock.AfterFunc(l.term-l.clock.Since(sent), func() {
		l.lose(fmt.Sprintf("it could not be renewed for %s", l.term))
	})
}

// lose reports the end of a leadership that nobody asked for. Workers that are gone already cannot do harm.
func (l *leadership) lose(why string) {
	l.mu.Lock()
	defer l.mu.Unlock()

	if !l.leads || l.workersGone.closed() {
		return
	}

	l.leads = false
	select {
	case l.lost <- fmt.Errorf("lost the leader Lease %s: %s; exiting immediately, so that no two instances work", l.Describe(), why):
	default:
	}
}

// endTerm stops the watch over the term. Callers hold mu.
func (l *leadership) endTerm() {
	l.leads = false // for a timer that has just fired
	if l.expiry != nil {
		l.expiry.Stop()
	}
}
