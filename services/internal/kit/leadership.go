package kit

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// errStillWorking refuses a release of the leader Lease.
var errStillWorking = errors.New("the leader Lease is kept, because this process may still be working")

// leadership is the leader Lease as the manager's elector sees it, made safe in two ways that the elector is not:
//
//   - The elector releases the Lease at the end of every term, also when it failed to renew in time, while the
//     controllers still run. leadership lets a release pass only once the workers are gone.
//   - The elector notices a loss late: it goes on trying for its renew deadline after another process took the Lease,
//     and then waits for the release before it tells anybody, possibly for longer than the Lease lasts. leadership
//     reports the loss when it sees another holder, and before the Lease can have expired since the last renewal was
//     sent.
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
	return l.renew(func() error { return l.Interface.Create(ctx, record) })
}

// Update implements resourcelock.Interface: it acquires, renews, and, without a holder, releases the Lease.
func (l *leadership) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if record.HolderIdentity == "" {
		return l.release(ctx, record)
	}

	return l.renew(func() error { return l.Interface.Update(ctx, record) })
}

// holds reports whether this process may act as the leader now. A process that was suspended may ask before the timer
// of its term has fired.
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

// renew begins the next term with a write, counted from when the request was sent: the server may have stored it that
// early.
func (l *leadership) renew(write func() error) error {
	sent := l.clock.Now()

	if err := write(); err != nil {
		return err
	}

	l.mu.Lock()
	defer l.mu.Unlock()
	l.endTerm()
	l.leads, l.until = true, sent.Add(l.term)
	l.expiry = l.clock.AfterFunc(l.term-l.clock.Since(sent), func() {
		l.lose(fmt.Sprintf("it could not be renewed for %s", l.term))
	})

	return nil
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
	case l.lost <- fmt.Errorf("lost the leader Lease %s: %s; exiting immediately, so that no two instances work",
		l.Describe(), why):
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

// errNotLeader refuses a write.
var errNotLeader = errors.New("refused to write: this process does not hold the leader Lease")

// gate lets requests that write pass only while this process may act as the leader. A service of its own ends its
// process when it loses the leader Lease, which stops whatever still runs. One inside another program cannot, so its
// writes stop here.
type gate struct {
	http.RoundTripper
	leader *leadership
}

// gated returns a config whose clients write only while this process may act as the leader.
func gated(config *rest.Config, leader *leadership) *rest.Config {
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return gate{next, leader} })

	return config
}

// RoundTrip implements [http.RoundTripper].
func (g gate) RoundTrip(r *http.Request) (*http.Response, error) {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
	default:
		if !g.leader.holds() {
			if r.Body != nil {
				_ = r.Body.Close() // as http.RoundTripper demands, also with an error
			}

			return nil, fmt.Errorf("%s %s: %w", r.Method, r.URL.Path, errNotLeader)
		}
	}

	return g.RoundTripper.RoundTrip(r) //nolint:wrapcheck // the client asks for the error of its transport
}

// phases learns from the manager how far it has come, by runnables that do nothing but are started and stopped in
// order.
type phases struct {
	// started closes when the caches are filled.
	started *latch
	// stopping closes when the manager begins to stop, whether it was told to or something failed.
	stopping *latch
	// workersGone closes when the last controller has returned.
	workersGone *latch
}

// addPhases registers the marks. The manager stops its groups one after the other and waits for each: runnables of
// every replica, then those of the leader (controllers), then caches, webhooks and HTTP servers.
func addPhases(mgr manager.Manager, workersGone *latch) (*phases, error) {
	p := &phases{started: newLatch(), stopping: newLatch(), workersGone: workersGone}

	return p, errors.Join(mgr.Add(everyReplica{p}), mgr.Add(amongCaches{p, mgr.GetCache()}))
}

// everyReplica belongs to the first group that is stopped, and is started once the caches have synced.
type everyReplica struct{ *phases }

func (everyReplica) NeedLeaderElection() bool { return false }

func (m everyReplica) Start(ctx context.Context) error {
	m.started.close()
	<-ctx.Done()
	m.stopping.close()

	return nil
}

// amongCaches belongs, by having a cache, to the group that is stopped after the controllers have returned.
type amongCaches struct {
	*phases
	cache cache.Cache
}

func (m amongCaches) GetCache() cache.Cache { return m.cache }

func (m amongCaches) Start(ctx context.Context) error {
	<-ctx.Done()
	m.workersGone.close()

	return nil
}

// latch may be closed more than once, by anybody.
type latch struct {
	context.Context
	close context.CancelFunc
}

func newLatch() *latch {
	ctx, cancel := context.WithCancel(context.Background())

	return &latch{ctx, cancel}
}

func (l *latch) closed() bool { return l.Err() != nil }
