package shard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlcontroller "sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/internal/testenv"
)

const (
	// together is how many combinations run at the same time: they wait more than they work.
	together = 8
	// prompt is a generous limit for a drain. Without drains at the informer, none of those in question would end at all.
	prompt = 15 * time.Second
)

// setup is what an operator sets up, as far as the combinations differ.
type setup struct {
	manager    manager.Options
	cache      client.CacheOptions
	controller ctrlcontroller.Options
	filters    []predicate.Predicate
}

// setting is an option of an operator. The priority queue is the default of controller-runtime, so the option is to
// have another.
type setting struct {
	name string
	set  func(s *setup, namespaces ...string)
}

func settings() []setting {
	return []setting{
		{"WithEventFilter",
			func(s *setup, _ ...string) { s.filters = append(s.filters, predicate.GenerationChangedPredicate{}) }},
		{"EnableWarmup", func(s *setup, _ ...string) { s.controller.EnableWarmup = new(true) }},
		{"plain queue", func(s *setup, _ ...string) { s.controller.UsePriorityQueue = new(false) }},
		{"ReconciliationTimeout", func(s *setup, _ ...string) { s.controller.ReconciliationTimeout = time.Second }},
		{"DisableFor", func(s *setup, _ ...string) {
			s.cache.DisableFor = []client.Object{&corev1.ConfigMap{}, &corev1.Secret{}}
		}},
		{"namespaces", func(s *setup, namespaces ...string) {
			s.manager.Cache.DefaultNamespaces = map[string]cache.Config{}
			for _, namespace := range namespaces {
				s.manager.Cache.DefaultNamespaces[namespace] = cache.Config{}
			}
		}},
	}
}

// TestOptionsOfOperators leads two shards of an operator through join, drain, a lost label, and the loss of a Lease:
// for each form of objects with each option of controller-runtime that changes what a controller sees, or when it runs.
func TestOptionsOfOperators(t *testing.T) {
	ryw := setting{"ReadYourWrites", func(s *setup, _ ...string) { s.cache.EnableReadYourWritesConsistency = new(true) }}
	all := setting{"all", func(s *setup, namespaces ...string) {
		s.cache.Unstructured = true
		for _, one := range settings() {
			one.set(s, namespaces...)
		}
	}}

	var running errgroup.Group
	running.SetLimit(together)

	for _, of := range slices.Concat(settings(), []setting{ryw, all}) {
		for _, form := range forms {
			running.Go(func() error {
				t.Run(of.name+"/"+form, func(t *testing.T) { newMatrix(t, form, of).run() })
				return nil
			})
		}
	}

	_ = running.Wait()
}

// matrix is one combination.
type matrix struct {
	*fixture

	form       string
	setting    setting
	namespaces []string
	ledger     *ledger
	cached     client.Reader // that of shard a
	first      *process      // shard a
	cut        context.CancelFunc
}

func newMatrix(t *testing.T, form string, of setting) *matrix {
	t.Helper()

	f := newFixture(t)

	return &matrix{
		fixture: f, form: form, setting: of, namespaces: []string{f.namespace, testenv.Namespace(t)},
		ledger: &ledger{inside: map[string]string{}, gone: map[string]bool{}, done: map[string]int{},
			given: map[string]bool{"other": true}, gates: map[string]chan struct{}{}, entered: make(chan string, 100)},
	}
}

func (m *matrix) run() {
	// Join.
	idle, lone, dropped, changed := m.owner("idle", "a"), m.owner("lone", "a"), m.owner("dropped", "a"),
		m.owner("changed", "a")
	other := m.owner("other", "b")

	m.join()
	m.works("a", idle, lone, dropped, changed)
	m.works("b", other)

	// Drain while the only worker of the shard is in a reconcile.
	gate := make(chan struct{})
	open := sync.OnceFunc(func() { close(gate) })
	m.Cleanup(open)
	m.ledger.hold("busy", gate)
	busy := m.owner("busy", "a")
	require.Equal(m, "busy", receive(m.fixture, m.ledger.entered, "it is worked on"))

	for _, obj := range []client.Object{idle, dropped, changed} {
		// unless filtered, this fills the queue
		m.merge(obj, map[string]any{"annotations": map[string]any{"touched": "true"}})
	}

	m.label(busy, m.keys.Drain, "true")
	m.label(idle, m.keys.Drain, "true")
	m.ledger.gives("lone")
	m.label(lone, m.keys.Drain, "b")
	m.released(idle, "")
	m.released(lone, "b")
	m.hand(idle)
	m.works("b", idle, lone)
	m.refresh(busy)
	require.Equal(m, "a", busy.Labels[m.keys.Shard])
	open()
	m.released(busy, "")
	m.hand(busy)
	m.works("b", busy)

	// Somebody else changes labels. Nobody drains the objects, so they are handed over when their shard has seen that.
	m.label(dropped, m.keys.Shard, "")
	m.label(changed, m.keys.Shard, "nobody")
	m.vanish(dropped)
	m.vanish(changed)
	m.hand(dropped)
	m.hand(changed)
	m.works("b", dropped, changed)

	// Kill.
	m.ledger.hold("kept", nil)
	kept := m.owner("kept", "a")
	require.Equal(m, "kept", receive(m.fixture, m.ledger.entered,
		"it is worked on, after what became of the other objects was seen"))
	m.cut()
	m.first.wait()
	require.ErrorIs(m, m.first.err, ErrLost)
	m.eventually("the context of the reconcile has ended", func() bool { return !m.ledger.works("kept") })
	m.take("a")
	m.hand(kept)
	m.works("b", kept)

	m.single(idle, dropped, changed, other, busy, kept)
	require.Empty(m, m.ledger.violations())
}

// owner creates a main object of a shard. Objects alternate between the namespaces.
func (m *matrix) owner(name, of string) *corev1.ConfigMap {
	m.Helper()
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: m.namespaces[len(name)%2], Name: name,
		Labels: map[string]string{m.keys.Shard: of}}}
	require.NoError(m, m.admin.Create(m.Context(), cm))

	return cm
}

// join starts both shards. The requests of a break off when it is cut off, and its Lease is short.
func (m *matrix) join() {
	m.Helper()

	network, cut := context.WithCancel(context.WithoutCancel(m.Context()))
	m.cut = cut
	config := rest.CopyConfig(m.config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return cable{next, network} })

	a := m.named("a")
	a.LeaseDuration, a.RenewDeadline = 8*time.Second, 5*time.Second
	mgr := m.operate(config, a)
	m.cached = mgr.GetCache()
	m.first = m.launch(mgr.Start)
	m.Cleanup(cut)

	slow := rest.CopyConfig(m.config)
	slow.Wrap(func(next http.RoundTripper) http.RoundTripper { return slowSecrets{next} })
	m.launch(m.operate(slow, m.named("b")).Start)
}

// operate returns a manager with the operator.
func (m *matrix) operate(config *rest.Config, o Options) *Manager {
	m.Helper()

	s := setup{manager: m.options(), controller: ctrlcontroller.Options{SkipNameValidation: new(true)}}
	m.setting.set(&s, m.namespaces...)
	s.manager.Client.Cache = &s.cache
	o.Kinds = Kinds{Main(m.empty("ConfigMap")), Controlled(m.empty("Secret"))}
	o.DrainTimeout = -1
	o.Exit = func(err error) { m.ledger.violates("the process of %s ends: %v", o.Name, err) }

	mgr, err := NewManager(config, s.manager, o)
	require.NoError(m, err)

	b := ctrl.NewControllerManagedBy(mgr).Named("maker").WithOptions(s.controller)
	if m.form == "metadata" {
		b = b.For(&corev1.ConfigMap{}, builder.OnlyMetadata).Owns(&corev1.Secret{}, builder.OnlyMetadata)
	} else {
		b = b.For(m.empty("ConfigMap")).Owns(m.empty("Secret"))
	}

	for _, filter := range s.filters {
		b = b.WithEventFilter(filter)
	}

	require.NoError(m, b.Complete(&maker{
		Client: mgr.GetClient(), form: m.form, shard: o.Name, ledger: m.ledger,
		patient: s.controller.ReconciliationTimeout > 0, made: map[types.UID]bool{},
	}))

	return mgr
}

func (m *matrix) empty(kind string) client.Object {
	obj, _ := emptyOf(m.form, kind)
	return obj
}

// children returns the objects that the owner controls.
func (m *matrix) children(owner client.Object) []corev1.Secret {
	m.Helper()

	list := &corev1.SecretList{}
	require.NoError(m, m.admin.List(m.Context(), list, client.InNamespace(owner.GetNamespace())))

	return slices.DeleteFunc(list.Items, func(s corev1.Secret) bool { return !metav1.IsControlledBy(&s, owner) })
}

// hand gives an object to shard b as the rebalancer does: first what it controls, then the object, with what its shard
// has to wait for.
func (m *matrix) hand(owner client.Object) {
	m.Helper()
	m.ledger.leaves(owner.GetName())
	m.ledger.gives(owner.GetName())

	handover := contract.Handover{}

	for _, child := range m.children(owner) {
		m.label(&child, m.keys.Shard, "b")
		handover.Reached(corev1.Resource("secrets"), child.ResourceVersion)
	}

	m.merge(owner, map[string]any{
		"labels":      map[string]any{m.keys.Shard: "b", m.keys.Drain: nil},
		"annotations": map[string]any{m.keys.Handover: handover.String()},
	})
}

// released waits until an object carries no drain label, and the label of the shard, or none.
func (m *matrix) released(obj client.Object, to string) {
	m.Helper()
	require.Eventually(m, func() bool {
		err := m.admin.Get(m.Context(), client.ObjectKeyFromObject(obj), obj)
		labels := obj.GetLabels()

		return err == nil && labels[m.keys.Shard] == to && labels[m.keys.Drain] == ""
	}, prompt, interval, "%s is released", obj.GetName())
	m.ledger.leaves(obj.GetName())
}

// works waits until a shard has worked on the objects.
func (m *matrix) works(of string, objects ...client.Object) {
	m.Helper()

	for _, obj := range objects {
		m.eventually(of+" works on "+obj.GetName(), func() bool { return m.ledger.ended(of, obj.GetName()) > 0 })
	}
}

// vanish waits until the cache of shard a does not show the object.
func (m *matrix) vanish(obj client.Object) {
	m.Helper()
	m.eventually("the object is not in the cache", func() bool {
		return apierrors.IsNotFound(m.cached.Get(m.Context(), client.ObjectKeyFromObject(obj), m.empty("ConfigMap")))
	})
}

// take takes the Lease of a shard as the lease monitor does.
func (m *matrix) take(of string) {
	m.Helper()

	lease := &coordinationv1.Lease{}
	require.NoError(m, m.admin.Get(m.Context(), client.ObjectKey{Namespace: m.namespace, Name: of}, lease))

	now := metav1.NowMicro()
	lease.Spec.HolderIdentity, lease.Spec.AcquireTime, lease.Spec.RenewTime = new(contract.LeaseControllerIdentity), &now,
		&now
	lease.Spec.LeaseDurationSeconds = new(2 * *lease.Spec.LeaseDurationSeconds)
	require.NoError(m, m.admin.Update(m.Context(), lease))
}

// single checks that each object has one child, at the shard b.
func (m *matrix) single(owners ...client.Object) {
	m.Helper()

	for _, owner := range owners {
		children := m.children(owner)
		require.Len(m, children, 1, owner.GetName())
		require.Equal(m, map[string]string{m.keys.Shard: "b"}, children[0].Labels, owner.GetName())
	}
}

// lag is how late shard b sees what follows its objects.
const lag = 300 * time.Millisecond

// cable is a connection that ends with a context.
type cable struct {
	next http.RoundTripper
	ctx  context.Context //nolint:containedctx // that of the network
}

func (c cable) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(req.Context())
	context.AfterFunc(c.ctx, cancel)

	return c.next.RoundTrip(req.WithContext(ctx))
}

// slowSecrets makes the caches of Secrets lag behind those of their owners.
type slowSecrets struct{ http.RoundTripper }

func (s slowSecrets) RoundTrip(req *http.Request) (*http.Response, error) {
	response, err := s.RoundTripper.RoundTrip(req)
	if err == nil && strings.HasSuffix(req.URL.Path, "/secrets") && req.URL.Query().Has("watch") {
		response.Body = slowBody{response.Body}
	}

	return response, err
}

type slowBody struct{ io.ReadCloser }

func (b slowBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	<-clock.RealClock{}.After(lag)

	return n, err
}

// ledger is what the reconcilers of both shards have done.
type ledger struct {
	entered chan string // the objects whose reconciles are held

	mu     sync.Mutex
	inside map[string]string        // the shard that works on an object
	given  map[string]bool          // objects that may be b's
	gone   map[string]bool          // objects that are not a's any more
	done   map[string]int           // by shard and object: reconciles that have ended
	gates  map[string]chan struct{} // by object
	wrong  []string
}

func (l *ledger) violates(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.wrong = append(l.wrong, fmt.Sprintf(format, args...))
}

func (l *ledger) violations() []string {
	l.mu.Lock()
	defer l.mu.Unlock()

	return slices.Clone(l.wrong)
}

// begin records that a shard works on an object, until the returned function is called.
func (l *ledger) begin(of, name string) (end func()) {
	l.mu.Lock()
	defer l.mu.Unlock()

	switch is := l.inside[name]; {
	case is != "":
		l.wrong = append(l.wrong, fmt.Sprintf("%s works on %s while %s does", of, name, is))
	case of == "a" && (l.gone[name] || name == "other"), of == "b" && !l.given[name]:
		l.wrong = append(l.wrong, fmt.Sprintf("%s works on %s, which is not its own", of, name))
	}

	l.inside[name] = of

	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()

		l.inside[name] = ""
		l.done[of+"/"+name]++
	}
}

func (l *ledger) works(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()

	return l.inside[name] != ""
}

func (l *ledger) ended(of, name string) int {
	l.mu.Lock()
	defer l.mu.Unlock()

	return l.done[of+"/"+name]
}

// gives records that an object may be b's.
func (l *ledger) gives(name string) { locked(&l.mu, func() { l.given[name] = true }) }

// leaves records that an object is not a's any more.
func (l *ledger) leaves(name string) { locked(&l.mu, func() { l.gone[name] = true }) }

// hold makes reconciles of an object by a wait for the channel, or, if that is nil, for the end of their context.
func (l *ledger) hold(name string, gate chan struct{}) {
	locked(&l.mu, func() { l.gates[name] = gate })
}

func (l *ledger) gate(name string) (gate chan struct{}, held bool) {
	l.mu.Lock()
	defer l.mu.Unlock()

	gate, held = l.gates[name]

	return gate, held
}

// maker is an operator that makes a child for each object but "lone", with a name that the API server generates. It
// counts them in its cache, and remembers those that it has made.
type maker struct {
	client.Client
	form    string
	shard   string
	ledger  *ledger
	patient bool // reconciles that are held outlast their timeout
	made    map[types.UID]bool
}

func (m *maker) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	defer m.ledger.begin(m.shard, request.Name)()

	owner, _ := emptyOf(m.form, "ConfigMap")

	err := m.Get(ctx, request.NamespacedName, owner)
	if err == nil && request.Name != "lone" {
		err = m.ensure(ctx, owner)
	}

	if apierrors.IsNotFound(err) || err != nil && ctx.Err() == nil && !errors.Is(err, context.Canceled) {
		m.ledger.violates("%s works on %s: %v", m.shard, request.Name, err)
	}

	gate, held := m.ledger.gate(request.Name)
	if err != nil || !held || m.shard != "a" {
		return reconcile.Result{}, err
	}

	m.ledger.entered <- request.Name

	if gate != nil {
		<-gate
	}

	if gate == nil || m.patient {
		<-ctx.Done()
	}

	return reconcile.Result{}, nil
}

// ensure makes the child of an object, unless it has one.
func (m *maker) ensure(ctx context.Context, owner client.Object) error {
	_, list := emptyOf(m.form, "Secret")
	if err := m.List(ctx, list, client.InNamespace(owner.GetNamespace())); err != nil {
		return err
	}

	items, err := meta.ExtractList(list)
	if err != nil {
		return err
	}

	has := slices.ContainsFunc(items, func(item runtime.Object) bool {
		child, ok := item.(client.Object)
		return ok && metav1.IsControlledBy(child, owner)
	})
	if has || m.made[owner.GetUID()] {
		return nil
	}

	child, _ := emptyOf(m.form, "Secret")
	if m.form == "metadata" {
		child = &corev1.Secret{} // metadata alone cannot be created
	}

	child.SetNamespace(owner.GetNamespace())
	child.SetGenerateName(owner.GetName() + "-")
	child.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(owner,
		corev1.SchemeGroupVersion.WithKind("ConfigMap"))})

	if err := m.Create(ctx, child); err != nil {
		return err
	}

	m.made[owner.GetUID()] = true

	return nil
}
