package shard

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/clusterring/clusterring/pkg/shard/former"
)

// inner is the manager without sharding, which nobody else gets.
type inner = manager.Manager

// Manager is a manager.Manager that runs as a shard. [NewManager] creates it.
type Manager struct {
	inner

	shard    *Shard
	config   *rest.Config
	kinds    declared
	cache    *split
	clients  *clients
	former   *former.Election // nil: there is none
	election *election        // nil: nothing runs in one replica
	// begun is closed when the shard has its name and its Lease, working when also its caches are full.
	begun, working chan struct{}
	// crew are the controllers, and the other runnables that were placed; stop ends their work.
	crew     crew
	stopping context.Context //nolint:containedctx // it ends what a runnable group would end too late
	stop     context.CancelCauseFunc
	// grace is how long the crew may take to stop; negative: for ever.
	grace time.Duration
	// prepared is true when the process could work as a shard, and told is when it was told to stop.
	prepared atomic.Bool
	told     atomic.Pointer[time.Time]
	// serves reports whether the webhooks are served; nil: there are none.
	serves atomic.Pointer[func(*http.Request) error]

	mu          sync.Mutex
	controllers map[string]*found // that were added
	limit       time.Duration     // for how long caches may take to be filled
}

// NewManager returns a manager that runs as a shard. It replaces ctrl.NewManager, and nothing else is needed:
//
//   - A controller whose For kind is one of [Options].Kinds works only on objects of this shard, and acknowledges
//     drains, as [Shard.Reconciler] describes. Every other controller, and every other runnable that would run where
//     the leader is, must be declared in Options.Controllers or Options.Runnables. Add refuses it by name otherwise.
//   - Start waits for a slot, if Options.Slots are set, takes the shard's Lease, fills the caches of the sharded kinds,
//     and starts the controllers. Probes, metrics, webhooks, other caches, and what runs in every replica always work.
//   - The check "shard" of /readyz passes while the process waits for a slot that it could take, and when it works.
//   - When the context of Start ends, the shard works until its objects are drained; see Options.DrainTimeout. Webhooks
//     are served a few seconds longer. If the Lease is lost, Start returns an [ErrLost], and the process must end.
//   - If the options have a leader election, the shards replace it without a moment in which its leader and a shard
//     work at the same time; see [github.com/clusterring/clusterring/pkg/shard/former]. Keep it until no version
//     without shards can come back.
//
// The manager's clients, readers and caches contain only the objects of this shard of the sharded kinds, in any version
// and form; GetAPIReader reads all of them. The error names all that is missing or wrong.
func NewManager(config *rest.Config, options manager.Options, shard Options) (*Manager, error) {
	s, err := New(shard)
	if err != nil {
		return nil, err
	}

	return newManager(s, config, options)
}

func newManager(s *Shard, config *rest.Config, options manager.Options) (*Manager, error) {
	if options.Scheme == nil {
		options.Scheme = scheme.Scheme
	}

	m := &Manager{
		shard: s, config: config, begun: make(chan struct{}), working: make(chan struct{}), controllers: map[string]*found{},
		grace: ptr.Deref(options.GracefulShutdownTimeout, defaultGrace), limit: defaultSyncTimeout,
	}
	m.stopping, m.stop = context.WithCancelCause(context.Background())

	var err error
	if m.kinds, err = s.options.Kinds.in(options.Scheme); err == nil {
		err = s.options.validatePlacements(options.Scheme, m.kinds)
	}

	if err == nil {
		err = m.configure(&options)
	}

	if err == nil {
		err = m.create(options)
	}

	if err != nil {
		return nil, fmt.Errorf("create the manager of a shard of ring %s: %w", s.Ring(), err)
	}

	return m, nil
}

const (
	// defaultGrace is the default of GracefulShutdownTimeout in controller-runtime.
	defaultGrace = 30 * time.Second
	// linger is how long webhooks are served after the process was told to stop: until all proxies know that it does.
	linger = 5 * time.Second
)

// Shard returns the shard as which the manager runs.
func (m *Manager) Shard() *Shard { return m.shard }

func (m *Manager) configure(o *manager.Options) error {
	if o.LeaderElectionResourceLockInterface != nil {
		return errors.New("remove LeaderElectionResourceLockInterface: the manager makes the Lease of the shard")
	}

	if err := m.replaceElection(o); err != nil {
		return err
	}

	if err := checkCache(*o, m.kinds); err != nil {
		return err
	}

	m.shard.namespaces = watchedNamespaces(*o, m.kinds)
	o.NewCache = m.newCache
	m.shard.declare(m.kinds)

	return m.shard.connect(m.config)
}

func (m *Manager) newCache(config *rest.Config, o cache.Options) (cache.Cache, error) {
	others, err := cache.New(config, o)
	if err != nil {
		return nil, err //nolint:wrapcheck // the manager says what for
	}

	m.shard.stores.selector = late{labels.Nothing(), m.shard.Selector}
	if err := m.shard.stores.follow(&o, o.Scheme); err != nil {
		return nil, err
	}

	mine, err := cache.New(config, o)
	if err != nil {
		return nil, err //nolint:wrapcheck // the manager says what for
	}

	m.cache = &split{Cache: others, sharded: mine, scheme: o.Scheme, kinds: m.kinds, begun: m.begun}

	return m.cache, nil
}

func (m *Manager) create(o manager.Options) error {
	mgr, err := manager.New(m.config, o)
	if err != nil {
		return err //nolint:wrapcheck // NewManager says what for
	}

	m.inner, m.shard.poison.events = mgr, mgr.GetEventRecorder("clusterring")
	if m.clients, err = m.shard.newClients(m.clientOptions(o)); err != nil {
		return err
	}

	for _, kind := range m.kinds {
		m.shard.kindOf(mgr.GetClient(), kind.object)
	}

	m.shard.stores.obtain = func(ctx context.Context, obj *metav1.PartialObjectMetadata) error {
		if _, declared := m.kinds[obj.GroupVersionKind().GroupKind()]; !declared {
			return errUndeclared
		}

		_, err := m.cache.GetInformer(ctx, obj)

		return err
	}

	errs := []error{mgr.AddReadyzCheck("shard", m.ready)}
	if m.former != nil {
		errs = append(errs, mgr.Add(m.former))
	}

	if m.shard.options.uses(oneReplica) {
		if m.election, err = newElection(m.config, m.shard, m.working); err != nil {
			return err
		}

		errs = append(errs, mgr.Add(m.election))
	}

	return errors.Join(errs...)
}

func (m *Manager) clientOptions(o manager.Options) clientOptions {
	of := clientOptions{
		scheme: o.Scheme, inner: o.Client.Cache, kinds: m.kinds, showLabels: m.shard.options.ShowLabels,
		checkWrites: m.shard.options.CheckWrites,
		shared:      ptr.Deref(o.Cache.DefaultUnsafeDisableDeepCopy, false),
	}
	for _, kind := range o.Cache.ByObject {
		of.shared = of.shared || ptr.Deref(kind.UnsafeDisableDeepCopy, false)
	}

	return of
}

func (m *Manager) replaceElection(o *manager.Options) (err error) {
	if o.LeaderElection && o.LeaderElectionID != "" {
		namespace, config := o.LeaderElectionNamespace, m.config
		if namespace == "" {
			namespace = m.shard.Namespace()
		}

		if o.LeaderElectionConfig != nil {
			config = o.LeaderElectionConfig
		}

		m.former, err = former.New(config, former.Options{
			Ring: m.shard.Ring(), Namespace: namespace, Name: o.LeaderElectionID,
			LeaseDuration: ptr.Deref(o.LeaseDuration, 0), RenewDeadline: ptr.Deref(o.RenewDeadline, 0),
			RetryPeriod: ptr.Deref(o.RetryPeriod, 0),
		})
	}

	o.LeaderElection, o.LeaderElectionID, o.LeaderElectionNamespace = false, "", ""
	o.LeaseDuration, o.RenewDeadline, o.RetryPeriod, o.LeaderElectionConfig = nil, nil, nil, nil

	return err
}

// work returns a context for a runnable, which ends when manager or shard stops, and a function that reports that it
// has ended.
func (m *Manager) work(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	after := context.AfterFunc(m.stopping, func() { cancel(context.Cause(m.stopping)) })
	entered := m.crew.enter()

	if !entered {
		cancel(context.Canceled)
	}

	return ctx, func() {
		after()
		cancel(nil)

		if entered {
			m.crew.leave()
		}
	}
}

// Start implements manager.Manager. See [NewManager].
func (m *Manager) Start(ctx context.Context) error {
	ctx = logr.NewContext(ctx, m.GetLogger())

	defer running.add(m.shard)()

	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	ended, parted := make(chan error, 1), make(chan error, 1)
	over := make(chan struct{})

	go func() {
		ended <- m.inner.Start(running)
		close(over)
	}()

	told := func() { m.told.CompareAndSwap(nil, new(m.shard.term.clock.Now())) }
	context.AfterFunc(ctx, told)

	go func() {
		err := m.takePart(ctx, over)
		if err == nil && ctx.Err() != nil && m.serves.Load() != nil {
			told() // what waited for a slot has stopped at once
			m.pause(linger-m.shard.term.clock.Since(*m.told.Load()), over)
		}
		parted <- err
	}()

	var err error

	select {
	case err = <-parted: // the shard has stopped
		stop()

		if errors.Is(err, ErrLost) {
			// The process must end, whatever still runs in it.
			select {
			case <-over:
			case <-m.shard.term.clock.After(time.Second):
			}

			return err
		}

		return errors.Join(err, <-ended)
	case err = <-ended: // something that the manager runs has failed
		stop()

		return errors.Join(err, <-parted)
	}
}

// takePart works as a shard until the context ends, the Lease is lost, or the manager is over.
func (m *Manager) takePart(ctx context.Context, over <-chan struct{}) error {
	joining, stop := ending(ctx, over)
	defer stop()

	if err := m.prepare(joining); err != nil {
		return unless(joining, err)
	}

	t, err := m.shard.hold(joining, m.config)
	if err != nil {
		return unless(joining, err)
	}
	defer t.end()

	close(m.begun)

	if err := m.fill(joining, t); err != nil {
		return unless(joining, err)
	}

	close(m.working)

	select {
	case <-t.lost:
		return m.shard.lostError()
	case <-over:
		return nil
	case <-m.shard.untilDrained(ctx).Done():
	}

	m.stop(context.Cause(ctx))
	m.disband()
	t.end()

	return nil
}

func (m *Manager) disband() {
	idle := m.crew.dismiss()
	if m.grace < 0 {
		<-idle
		return
	}

	m.pause(m.grace, idle)
}

func (m *Manager) pause(d time.Duration, or <-chan struct{}) {
	timer := m.shard.term.clock.NewTimer(max(d, 0))
	defer timer.Stop()

	select {
	case <-timer.C():
	case <-or:
	}
}

// ending returns a context that also ends when the channel is closed.
func ending(ctx context.Context, over <-chan struct{}) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)

	go func() {
		defer cancel()

		select {
		case <-ctx.Done():
		case <-over:
		}
	}()

	return ctx, cancel
}

// unless returns the error, or nil if the context has ended: it was told to stop.
func unless(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil //nolint:nilerr // see above
	}

	return err
}

// GetLogger implements manager.Manager.
func (m *Manager) GetLogger() logr.Logger { return noted(m.inner.GetLogger()) }

// Elected implements manager.Manager. The channel is closed when this process works as a shard.
func (m *Manager) Elected() <-chan struct{} { return m.working }

// GetWebhookServer implements manager.Manager.
func (m *Manager) GetWebhookServer() webhook.Server {
	s := m.inner.GetWebhookServer()
	m.serves.Store(new((func(*http.Request) error)(s.StartedChecker())))

	return parting{s, &m.told}
}

// parting is a webhook server that asks clients to connect elsewhere when the process was told to stop. An API server
// sends all calls over one connection, also when no Service leads to the process; those that it sends when the server
// closes the connection would fail.
type parting struct {
	webhook.Server

	told *atomic.Pointer[time.Time]
}

// Register implements webhook.Server. Go's server turns the header into GOAWAY for HTTP/2.
func (p parting) Register(path string, hook http.Handler) {
	p.Server.Register(path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p.told.Load() != nil {
			w.Header().Set("Connection", "close")
		}

		hook.ServeHTTP(w, r)
	}))
}

// GetClient implements cluster.Cluster.
func (m *Manager) GetClient() client.Client { return m.clients.client(m.inner.GetClient()) }

// GetCache implements cluster.Cluster.
func (m *Manager) GetCache() cache.Cache { return m.clients.cache(m.inner.GetCache()) }

// GetAPIReader implements cluster.Cluster.
func (m *Manager) GetAPIReader() client.Reader { return m.clients.reader(m.inner.GetAPIReader()) }

// GetFieldIndexer implements cluster.Cluster.
func (m *Manager) GetFieldIndexer() client.FieldIndexer { return m.GetCache() }

var (
	errPreparing = errors.New("caches of other kinds are not full yet, or the sharded kinds cannot be listed: see the log")
	errNoSlot    = errors.New("the shard does not know yet whether there is a slot for it, or may not take it: see the log")
	errStopping  = errors.New("the shard was told to stop")
	errFilling   = errors.New("the caches of this shard's objects are not full yet")
)

// ready is the check of /readyz: it passes while the process waits for a slot that it could take, and when it works.
func (m *Manager) ready(r *http.Request) error {
	if serves := m.serves.Load(); serves != nil {
		if err := (*serves)(r); err != nil {
			return err
		}
	}

	switch {
	case m.told.Load() != nil:
		return errStopping
	case closed(m.working):
		return m.shard.term.held()
	case closed(m.begun):
		return errFilling
	case m.shard.standsBy.Load():
		return nil
	case !m.prepared.Load():
		return errPreparing
	case m.shard.options.Slots.any():
		return errNoSlot
	default:
		return ErrNotHeld
	}
}

// prepare waits until the process could work as a shard: a version that may not read a kind, or to which a kind is
// missing, shall take nothing. It also makes the informers of the sharded controllers, so that they are full when the
// controllers start.
func (m *Manager) prepare(ctx context.Context) error {
	m.mu.Lock()

	var watched []client.Object

	for _, c := range m.controllers {
		if c.sharded {
			watched = append(watched, c.watches()...)
		}
	}
	m.mu.Unlock()

	filled, cancel := context.WithTimeoutCause(ctx, m.patience(),
		fmt.Errorf("the caches of other kinds than the sharded ones were not full after %s: "+
			"see the log for a permission or a CustomResourceDefinition that is missing", m.patience()))
	defer cancel()

	others := func() error { return m.cache.inform(filled, false, watched) }
	if !m.retry(filled, others) || !m.cache.Cache.WaitForCacheSync(filled) {
		return context.Cause(filled)
	}

	// The kinds can be served, and permitted, later; until then, the shard that has the objects keeps them.
	m.prepared.Store(m.retry(ctx, func() error {
		return errors.Join(m.shard.canList(ctx), m.cache.inform(ctx, true, watched))
	}))

	return context.Cause(ctx)
}

// retry calls the function until it succeeds, or the context ends. It reports whether it has succeeded.
func (m *Manager) retry(ctx context.Context, do func() error) bool {
	return wait.PollUntilContextCancel(ctx, again, true, func(ctx context.Context) (bool, error) {
		err := do()
		if err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Taking no Lease, because this process could not work as a shard; trying again")
		}

		return err == nil, nil
	}) == nil
}

func (m *Manager) patience() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()

	return m.limit
}

// fill waits until the caches of the sharded kinds are full. If they are not in time, the Lease must be given back.
func (m *Manager) fill(ctx context.Context, t *tenure) error {
	ctx, stop := ending(ctx, t.lost)
	defer stop()

	limited, cancel := context.WithTimeout(ctx, m.patience())
	defer cancel()

	if m.cache.sharded.WaitForCacheSync(limited) {
		return nil
	}

	if closed(t.lost) {
		return m.shard.lostError()
	}

	return fmt.Errorf("shard %s gives its Lease back, because the caches of its objects were not full after %s: see "+
		"the log for the kind and the reason", m.shard.Name(),
		m.patience())
}

// canList returns why a declared kind cannot be listed; nil if all of them can.
func (s *Shard) canList(ctx context.Context) error {
	var errs []error

	for _, k := range s.allKinds() {
		namespaces, err := k.namespaces()
		for i := 0; err == nil && i < len(namespaces); i++ {
			_, err = k.page(ctx, namespaces[i], metav1.ListOptions{Limit: 1, LabelSelector: s.shardKey})
		}

		if err != nil {
			errs = append(errs, fmt.Errorf("list %s: %w", k.gvk.GroupKind(), err))
		}
	}

	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })

	return errors.Join(errs...)
}
