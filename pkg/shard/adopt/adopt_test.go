package adopt_test

import (
	"context"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/clusterring/clusterring/pkg/shard"
	"github.com/clusterring/clusterring/pkg/shard/adopt"
)

func onlyMaps() adopt.Options {
	return adopt.Options{Controllers: map[string]adopt.Placement{"maps": adopt.Sharded(&corev1.ConfigMap{})}}
}

func TestHiddenReconcilerIsSharded(t *testing.T) {
	f, o := newFixture(t), newOperator()
	mgr := f.manager("shard-0", onlyMaps())
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

func TestCheckedClientIsForThoseWhoAsk(t *testing.T) {
	f, options := newFixture(t), onlyMaps()
	options.CheckedClient = true

	cm := f.configMap("a", "shard-0")
	err := f.manager("shard-0", options).GetClient().Update(t.Context(), cm)
	require.ErrorIs(t, err, shard.ErrNotHeld)

	options.CheckedClient = false
	require.NoError(t, f.manager("shard-0", options).GetClient().Update(t.Context(), cm))
}

// collector is a runnable that does not say whether it needs leader election.
type collector struct{ started chan struct{} }

func (c *collector) Start(ctx context.Context) error {
	close(c.started)
	<-ctx.Done()

	return nil
}

func TestWhatIsNotDeclaredIsRefused(t *testing.T) {
	f := newFixture(t)
	mgr := f.manager("shard-0", onlyMaps())

	err := newOperator().SetupWithManager(mgr, "others")
	require.ErrorContains(t, err, `controller "others" is not declared`)
	require.ErrorContains(t, err, "maps", "it says what is declared")
	require.ErrorContains(t, mgr.Add(&collector{}), `runnable "*adopt_test.collector" is not declared`)
	require.ErrorContains(t, mgr.Add(manager.RunnableFunc(forever)), `runnable "github.com/clusterring/clusterring/pkg/shard/adopt_test.forever" is not declared`)
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
	wrapper struct{ controller.Controller }
	box     struct{ inner controller.Controller }
)

func (wrapper) NeedLeaderElection() bool { return false }

func (b box) Reconcile(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
	return b.inner.Reconcile(ctx, r)
}
func (b box) Watch(s source.Source) error     { return b.inner.Watch(s) }
func (b box) Start(ctx context.Context) error { return b.inner.Start(ctx) }
func (b box) GetLogger() logr.Logger          { return b.inner.GetLogger() }

func TestControllerIsFoundInWhatEmbedsIt(t *testing.T) {
	f, o := newFixture(t), newOperator()
	mgr := f.manager("shard-0", onlyMaps())
	o.client = mgr.GetClient()
	c, err := controller.NewUnmanaged("maps", controller.Options{
		Reconciler: o, SkipNameValidation: new(true), LogConstructor: func(*reconcile.Request) logr.Logger { return logr.Discard() },
	})
	require.NoError(t, err)

	require.ErrorContains(t, f.manager("shard-0", adopt.Options{Controllers: map[string]adopt.Placement{
		"others": adopt.Sharded(&corev1.ConfigMap{}),
	}}).Add(wrapper{c}), `controller "maps" is not declared`)
	require.NoError(t, mgr.Add(wrapper{c}))

	err = mgr.Add(box{c})
	require.ErrorIs(t, err, adopt.ErrUnknownController)
	require.ErrorContains(t, err, "adopt_test.box")

	f.configMap("mine", "shard-0")
	f.configMap("other", "shard-1")
	require.NoError(t, c.Watch(source.Kind(mgr.GetCache(), client.Object(&corev1.ConfigMap{}), &handler.EnqueueRequestForObject{})))
	f.start(mgr)
	f.eventually(func() bool { return o.calls("mine") > 0 }, "it works on its own object")
	require.NoError(t, o.failed())
}

func TestRequestsOfAnotherTypeAreNotSharded(t *testing.T) {
	f, options := newFixture(t), onlyMaps()
	options.Controllers["own"] = adopt.Sharded(&corev1.Secret{})
	mgr := f.manager("shard-0", options)

	_, err := controller.NewTyped("own", mgr, controller.TypedOptions[string]{Reconciler: ownRequests{}})
	require.ErrorContains(t, err, `controller "own" is declared as sharded, but its requests are not reconcile.Requests`)
}

// ownRequests reads its object with requests of its own type.
type ownRequests struct {
	client client.Client
	key    client.ObjectKey
	got    chan error
}

func (o ownRequests) Reconcile(ctx context.Context, _ string) (reconcile.Result, error) {
	o.got <- o.client.Get(ctx, o.key, &corev1.ConfigMap{})

	return reconcile.Result{}, nil
}

// once enqueues one request.
type once struct{ request string }

func (o once) Start(_ context.Context, q workqueue.TypedRateLimitingInterface[string]) error {
	q.Add(o.request)
	return nil
}

func TestControllerInEveryReplicaSeesItsOwnObjects(t *testing.T) {
	f, options := newFixture(t), onlyMaps()
	options.Controllers["own"] = adopt.EveryReplica()
	options.Runnables = map[string]adopt.Placement{"*adopt_test.collector": adopt.EveryReplica()}
	mgr := f.manager("shard-0", options)

	o, c := newOperator(), &collector{started: make(chan struct{})}
	require.NoError(t, o.SetupWithManager(mgr, "maps"))
	require.NoError(t, mgr.Add(c))

	own := ownRequests{client: mgr.GetClient(), key: client.ObjectKeyFromObject(f.configMap("mine", "shard-0")), got: make(chan error, 1)}
	typed, err := controller.NewTyped("own", mgr, controller.TypedOptions[string]{Reconciler: own})
	require.NoError(t, err)
	require.NoError(t, typed.Watch(once{"a"}))

	f.start(mgr)
	require.NoError(t, <-own.got, "it was adopted, although its requests are of its own type")
	<-c.started
}

func TestReconcileThatBypassesTheManagerIsNamed(t *testing.T) {
	f := newFixture(t)
	mgr := f.manager("shard-0", onlyMaps())
	require.NoError(t, newOperator().SetupWithManager(mgr, "maps"))
	f.configMap("mine", "shard-0")

	hidden := newOperator()
	hidden.client = mgr.GetClient()
	c, err := controller.NewUnmanaged("hidden", controller.Options{
		Reconciler: hidden, SkipNameValidation: new(true), LogConstructor: func(*reconcile.Request) logr.Logger { return logr.Discard() },
	})
	require.NoError(t, err)
	require.NoError(t, c.Watch(source.Kind(mgr.GetCache(), client.Object(&corev1.ConfigMap{}), &handler.EnqueueRequestForObject{})))

	// A runnable that needs no leader election starts it.
	require.NoError(t, mgr.Add(starts{c}))
	f.start(mgr)
	f.eventually(func() bool { return hidden.failed() != nil }, "its first request fails")
	require.ErrorIs(t, hidden.failed(), adopt.ErrNotAdopted)
	require.ErrorContains(t, hidden.failed(), "adopt_test.(*operator).Reconcile works on ConfigMap")
}

type starts struct{ c controller.Controller }

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
	f, got, stop := newFixture(t), make(chan result), map[string]func() error{}

	for _, name := range []string{"shard-0", "shard-1"} {
		options := onlyMaps()
		options.Controllers["one"] = adopt.OneReplica()
		mgr := f.manager(name, options)
		require.NoError(t, newOperator().SetupWithManager(mgr, "maps"))

		c, err := controller.New("one", mgr, controller.Options{
			Reconciler: &reads{name: name, cached: mgr.GetCache(), live: mgr.GetAPIReader(), got: got},
		})
		require.NoError(t, err)
		require.NoError(t, c.Watch(tick{}))

		stop[name] = f.start(mgr)
	}

	first := receive(f, got, "it runs in a replica")
	require.ErrorIs(t, first.cached, adopt.ErrPartialCache)
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

func TestOptionsAreValidated(t *testing.T) {
	f := newFixture(t)

	for _, tc := range []struct {
		name    string
		options adopt.Options
		want    []string
	}{
		{"nothing", adopt.Options{}, []string{"declare at least one controller as adopt.Sharded"}},
		{"no placement", adopt.Options{Controllers: map[string]adopt.Placement{"a": {}}}, []string{`controller "a": declare it as`}},
		{"no kind", adopt.Options{Controllers: map[string]adopt.Placement{"a": adopt.Sharded((*corev1.Secret)(nil))}}, []string{`controller "a": a kind is nil`}},
		{"no kind that follows", adopt.Options{Controllers: map[string]adopt.Placement{"a": adopt.Sharded(&corev1.Secret{}, nil)}}, []string{"a kind is nil"}},
		{"sharded runnable", adopt.Options{Runnables: map[string]adopt.Placement{"b": adopt.Sharded(&corev1.Secret{})}}, []string{`runnable "b": declare it as`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := adopt.NewManager(f.shard("shard-0"), f.config, f.options(), tc.options)
			for _, want := range tc.want {
				require.ErrorContains(t, err, want)
			}
		})
	}

	wrong := f.options()
	wrong.GracefulShutdownTimeout = new(time.Second)
	_, err := adopt.NewManager(f.shard("shard-0"), f.config, wrong, onlyMaps())
	require.ErrorContains(t, err, "remove GracefulShutdownTimeout")
}
