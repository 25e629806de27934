package shard_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	ctrlcontroller "sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/clusterring/clusterring/pkg/internal/testenv"
	"github.com/clusterring/clusterring/pkg/shard"
	"github.com/clusterring/clusterring/pkg/shard/shardtest"
)

const (
	doorPatience = 45 * time.Second
	doorInterval = 20 * time.Millisecond
)

// operators is a ring without services in a namespace of the same name.
type operators struct {
	*testing.T
	*shardtest.Ring

	admin     client.Client
	config    *rest.Config
	namespace string
}

func newOperators(t *testing.T) *operators {
	t.Helper()
	namespace, admin := testenv.Namespace(t), testenv.Client(t)

	return &operators{T: t, Ring: shardtest.New(t, admin, namespace), admin: admin, config: testenv.Config(t),
		namespace: namespace}
}

// options are those of a manager that several may run in one process.
func (f *operators) options() manager.Options {
	return manager.Options{
		Metrics:    metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: new(true)},
	}
}

// shard returns the options of a shard whose kind is ConfigMap.
func (f *operators) shard(name string) shard.Options {
	return shard.Options{
		Ring: f.namespace, Name: name, Namespace: f.namespace,
		LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 200 * time.Millisecond,
		HoldOff: 1500 * time.Millisecond,
		Kinds:   shard.Kinds{shard.Main(&corev1.ConfigMap{})},
	}
}

// manager returns a manager whose controllers are sharded.
func (f *operators) manager(o shard.Options) *shard.Manager {
	f.Helper()
	mgr, err := shard.NewManager(f.config, f.options(), o)
	require.NoError(f, err)

	return mgr
}

// bare returns a shard without a manager.
func (f *operators) bare(name string) *shard.Shard {
	f.Helper()
	s, err := shard.New(f.shard(name))
	require.NoError(f, err)

	return s
}

// start runs the manager until the test ends, or until the returned function is called, which returns its error.
func (f *operators) start(mgr manager.Manager) (stop func() error) {
	f.Helper()

	return f.runs(mgr.Start)
}

// runs runs the function until the test ends, or calls stop, which returns the function's error.
func (f *operators) runs(run func(context.Context) error) (stop func() error) {
	f.Helper()

	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})

	var err error

	go func() {
		defer close(done)

		err = run(ctx)
	}()

	stop = func() error {
		cancel()
		receive(f, done, "it stops")

		return err
	}
	f.Cleanup(func() { _ = stop() })

	return stop
}

// configMap creates a ConfigMap of a shard; an empty name of a shard stands for none.
func (f *operators) configMap(name, of string) *corev1.ConfigMap {
	f.Helper()
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: name}}

	if of != "" {
		cm.Labels = f.Labels(of)
	}

	require.NoError(f, f.admin.Create(f.Context(), cm))

	return cm
}

// operator is an operator of somebody else: it hides its reconciler, filters events, and knows nothing of shards.
type operator struct {
	client client.Client

	mu     sync.Mutex
	called map[string]int // by object
	errs   []error
}

func newOperator() *operator { return &operator{called: map[string]int{}} }

// SetupWithManager adds the controller. The predicate lets nothing through but creations.
func (o *operator) SetupWithManager(mgr manager.Manager, name string) error {
	o.client = mgr.GetClient()

	return ctrl.NewControllerManagedBy(mgr).Named(name).
		For(&corev1.ConfigMap{},
			builder.WithPredicates(predicate.Funcs{UpdateFunc: func(event.UpdateEvent) bool { return false }})).
		Complete(o)
}

func (o *operator) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	err := o.client.Get(ctx, request.NamespacedName, &corev1.ConfigMap{})

	o.mu.Lock()
	defer o.mu.Unlock()

	o.called[request.Name]++

	if err != nil {
		o.errs = append(o.errs, err)
	}

	return reconcile.Result{}, err
}

func (o *operator) calls(name string) int {
	o.mu.Lock()
	defer o.mu.Unlock()

	return o.called[name]
}

// failed returns the first error that a reconcile got; nil if there is none.
func (o *operator) failed() error {
	o.mu.Lock()
	defer o.mu.Unlock()

	if len(o.errs) == 0 {
		return nil
	}

	return o.errs[0]
}

func (f *operators) eventually(condition func() bool, what string) {
	f.Helper()
	require.Eventually(f, condition, doorPatience, doorInterval, what)
}

// receive waits for a value.
func receive[T any](f *operators, from <-chan T, what string) T {
	f.Helper()

	return testenv.Receive(f, doorPatience, from, what)
}

func TestHiddenReconcilerIsSharded(t *testing.T) {
	f, o := newOperators(t), newOperator()
	mgr := f.manager(f.shard("shard-0"))
	require.NoError(t, o.SetupWithManager(mgr, "maps"))

	mine := f.configMap("mine", "shard-0")
	f.configMap("other", "shard-1")
	f.start(mgr)
	f.eventually(func() bool { return o.calls("mine") > 0 }, "it works on its own object")

	f.Drain(mine)
	f.eventually(func() bool {
		cm := &corev1.ConfigMap{}
		require.NoError(t, f.admin.Get(t.Context(), client.ObjectKeyFromObject(mine), cm))

		return len(cm.Labels) == 0
	}, "the drain is acknowledged although the operator filters updates")
	require.Zero(t, o.calls("other"))
	require.NoError(t, o.failed())
}

func TestCheckWritesIsForThoseWhoAsk(t *testing.T) {
	f := newOperators(t)
	options := f.shard("shard-0")
	options.CheckWrites = true

	cm := f.configMap("a", "shard-0")
	err := f.manager(options).GetClient().Update(t.Context(), cm)
	require.ErrorIs(t, err, shard.ErrNotHeld)

	options.CheckWrites = false
	require.NoError(t, f.manager(options).GetClient().Update(t.Context(), cm))
}

// collector is a runnable that does not say whether it needs leader election.
type collector struct{ started chan struct{} }

func (c *collector) Start(ctx context.Context) error {
	close(c.started)
	<-ctx.Done()

	return nil
}

func TestWhatIsNotDeclaredIsRefused(t *testing.T) {
	f := newOperators(t)
	mgr := f.manager(f.shard("shard-0"))

	err := ctrl.NewControllerManagedBy(mgr).Named("others").For(&corev1.Secret{}).Complete(newOperator())
	require.ErrorContains(t, err, `controller "others" is not declared: it works on Secret, which is not one of`)
	require.ErrorContains(t, mgr.Add(&collector{}), `runnable "*shard_test.collector" is not declared`)
	require.ErrorContains(t, mgr.Add(manager.RunnableFunc(forever)),
		`runnable "github.com/clusterring/clusterring/pkg/shard_test" is not declared`)
	require.NoError(t, mgr.Add(everywhere{}), "what needs no leader election has run in every replica before")
}

func forever(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

type everywhere struct{}

func (everywhere) Start(ctx context.Context) error { return forever(ctx) }
func (everywhere) NeedLeaderElection() bool        { return false }

// wrapper embeds a controller, which stays visible; box hides one.
type (
	wrapper struct{ ctrlcontroller.Controller }
	box     struct{ inner ctrlcontroller.Controller }
)

func (wrapper) NeedLeaderElection() bool { return false }

func (b box) Reconcile(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
	return b.inner.Reconcile(ctx, r)
}
func (b box) Watch(s source.Source) error     { return b.inner.Watch(s) }
func (b box) Start(ctx context.Context) error { return b.inner.Start(ctx) }
func (b box) GetLogger() logr.Logger          { return b.inner.GetLogger() }

func TestControllerIsFoundInWhatEmbedsIt(t *testing.T) {
	f, o := newOperators(t), newOperator()
	mgr := f.manager(f.shard("shard-0"))
	o.client = mgr.GetClient()
	c, err := ctrlcontroller.NewUnmanaged("maps", ctrlcontroller.Options{
		Reconciler: o, SkipNameValidation: new(true),
		LogConstructor: func(*reconcile.Request) logr.Logger { return logr.Discard() },
	})
	require.NoError(t, err)

	require.ErrorContains(t, mgr.Add(wrapper{c}),
		`controller "maps" is not declared: it works on a kind that the manager cannot see`)

	options := f.shard("shard-0")
	options.Controllers = map[string]shard.Placement{"maps": shard.Sharded(&corev1.ConfigMap{})}
	mgr = f.manager(options)
	o.client = mgr.GetClient()
	require.NoError(t, mgr.Add(wrapper{c}))

	err = mgr.Add(box{c})
	require.ErrorIs(t, err, shard.ErrUnknownController)
	require.ErrorContains(t, err, "shard_test.box")

	f.configMap("mine", "shard-0")
	f.configMap("other", "shard-1")
	require.NoError(t, c.Watch(source.Kind(mgr.GetCache(), client.Object(&corev1.ConfigMap{}),
		&handler.EnqueueRequestForObject{})))
	f.start(mgr)
	f.eventually(func() bool { return o.calls("mine") > 0 }, "it works on its own object")
	require.NoError(t, o.failed())
}

func TestRequestsOfAnotherTypeAreSharded(t *testing.T) {
	f := newOperators(t)
	options := f.shard("shard-0")
	options.Controllers = map[string]shard.Placement{"own": shard.Sharded(&corev1.ConfigMap{})}

	_, err := ctrlcontroller.NewTyped("own", f.manager(options),
		ctrlcontroller.TypedOptions[string]{Reconciler: ownRequests{}})
	require.ErrorContains(t, err, `controller "own" is sharded, but its requests are not of type reconcile.Request`)

	mine, other := client.ObjectKeyFromObject(f.configMap("mine", "shard-0")),
		client.ObjectKeyFromObject(f.configMap("other", "shard-1"))
	options.Controllers["own"] = shard.ShardedBy(&corev1.ConfigMap{}, func(name string) types.NamespacedName {
		return types.NamespacedName{Namespace: f.namespace, Name: name}
	})
	mgr := f.manager(options)
	own := ownRequests{client: mgr.GetClient(), key: mine, got: make(chan error, 10)}
	c, err := ctrlcontroller.NewTyped("own", mgr, ctrlcontroller.TypedOptions[string]{Reconciler: own})
	require.NoError(t, err)
	require.NoError(t, c.Watch(once{other.Name}))
	require.NoError(t, c.Watch(once{mine.Name}))
	f.start(mgr)
	require.NoError(t, receive(f, own.got, "it works on its own object"))
	require.Empty(t, own.got, "and on no other")
}

// ownRequests reads its object with requests of its own type.
type ownRequests struct {
	client client.Client
	key    client.ObjectKey
	got    chan error
}

func (o ownRequests) Reconcile(ctx context.Context, _ string) (reconcile.Result, error) {
	err := o.client.Get(ctx, o.key, &corev1.ConfigMap{})
	o.got <- err

	return reconcile.Result{}, err
}

// once enqueues one request.
type once struct{ request string }

func (o once) Start(_ context.Context, q workqueue.TypedRateLimitingInterface[string]) error {
	q.Add(o.request)
	return nil
}

func TestReconcileThatBypassesTheManagerIsRefused(t *testing.T) {
	f := newOperators(t)
	mgr := f.manager(f.shard("shard-0"))
	require.NoError(t, newOperator().SetupWithManager(mgr, "maps"))
	f.configMap("mine", "shard-0")

	hidden := newOperator()
	hidden.client = mgr.GetClient()
	c, err := ctrlcontroller.NewUnmanaged("hidden", ctrlcontroller.Options{
		Reconciler: hidden, SkipNameValidation: new(true),
		LogConstructor: func(*reconcile.Request) logr.Logger { return logr.Discard() },
	})
	require.NoError(t, err)
	require.NoError(t, c.Watch(source.Kind(mgr.GetCache(), client.Object(&corev1.ConfigMap{}),
		&handler.EnqueueRequestForObject{})))

	// A runnable that needs no leader election starts it.
	require.NoError(t, mgr.Add(starts{c}))
	f.start(mgr)
	f.eventually(func() bool { return hidden.failed() != nil }, "its first request fails")
	require.ErrorIs(t, hidden.failed(), shard.ErrNotAdded)
	require.ErrorContains(t, hidden.failed(), "works on ConfigMap")
}

type starts struct{ c ctrlcontroller.Controller }

func (s starts) Start(ctx context.Context) error { return s.c.Start(ctx) }
func (starts) NeedLeaderElection() bool          { return false }

// reads is a controller that reads ConfigMaps in two ways.
type reads struct {
	name         string
	cached, live client.Reader
	got          chan result
}

type result struct {
	name         string
	cached, live error
}

func (r *reads) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	list := &corev1.ConfigMapList{}

	select {
	case r.got <- result{r.name, r.cached.List(ctx, list), r.live.List(ctx, list)}:
	case <-ctx.Done():
	}

	return reconcile.Result{}, nil
}

func TestControllerInOneReplica(t *testing.T) {
	f, got, stop := newOperators(t), make(chan result), map[string]func() error{}

	for _, name := range []string{"shard-0", "shard-1"} {
		options := f.shard(name)
		options.Controllers = map[string]shard.Placement{"one": shard.OneReplica()}
		mgr := f.manager(options)
		require.NoError(t, newOperator().SetupWithManager(mgr, "maps"))

		c, err := ctrlcontroller.New("one", mgr, ctrlcontroller.Options{
			Reconciler: &reads{name: name, cached: mgr.GetCache(), live: mgr.GetAPIReader(), got: got},
		})
		require.NoError(t, err)
		require.NoError(t, c.Watch(tick{}))

		stop[name] = f.start(mgr)
	}

	first := receive(f, got, "it runs in a replica")
	require.ErrorIs(t, first.cached, shard.ErrPartialCache)
	require.NoError(t, first.live, "the API reader is not filtered")

	require.NoError(t, stop[first.name](), "the Lease is released")
	require.NotEqual(t, first.name, receive(f, got, "it runs in the other replica").name)
}

// tick enqueues one request.
type tick struct{}

func (tick) Start(_ context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	q.Add(reconcile.Request{})
	return nil
}

func TestDeclarationsAreValidated(t *testing.T) {
	f := newOperators(t)

	for name, tc := range map[string]struct {
		change func(*shard.Options)
		want   string
	}{
		"no kinds": {func(o *shard.Options) { o.Kinds = nil }, "declare the resources of the ring"},
		"no main kind": {func(o *shard.Options) { o.Kinds = shard.Kinds{shard.Controlled(&corev1.Secret{})} },
			"declare the resources of the ring"},
		"a nil kind": {func(o *shard.Options) { o.Kinds = append(o.Kinds, shard.Main((*corev1.Secret)(nil))) },
			"an object is nil"},
		"a kind twice": {func(o *shard.Options) { o.Kinds = append(o.Kinds, shard.Controlled(&corev1.ConfigMap{})) },
			"ConfigMap is declared twice"},
		"an unknown kind": {func(o *shard.Options) { o.Kinds = append(o.Kinds, shard.Main(&metav1.PartialObjectMetadata{})) },
			"PartialObjectMetadata"},
		"no placement": {func(o *shard.Options) { o.Controllers = map[string]shard.Placement{"a": {}} },
			`controller "a": declare it as`},
		"an undeclared kind": {
			func(o *shard.Options) {
				o.Controllers = map[string]shard.Placement{"a": shard.Sharded(&corev1.Secret{})}
			}, `controller "a": kind of *v1.Secret: declare it`,
		},
		"a sharded runnable": {
			func(o *shard.Options) {
				o.Runnables = map[string]shard.Placement{"b": shard.Sharded(&corev1.ConfigMap{})}
			}, `runnable "b": declare it as`,
		},
		"no ring": {func(o *shard.Options) { o.Ring = "" }, "ring: set the name"},
	} {
		t.Run(name, func(t *testing.T) {
			options := f.shard("shard-0")
			tc.change(&options)
			_, err := shard.NewManager(f.config, f.options(), options)
			require.ErrorContains(t, err, tc.want)
		})
	}

	own := f.options()
	own.NewCache = cache.New
	_, err := shard.NewManager(f.config, own, f.shard("shard-0"))
	require.ErrorContains(t, err, "remove NewCache")
}
