package shard

import (
	"cmp"
	"context"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlcontroller "sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// operator is an operator of somebody else: it hides its reconciler, filters events, and knows nothing of shards.
type operator struct {
	client client.Client

	mu     sync.Mutex
	called map[string]int // by object
	failed error          // the first
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
	o.failed = cmp.Or(o.failed, err)

	return reconcile.Result{}, err
}

func (o *operator) calls(name string) int {
	o.mu.Lock()
	defer o.mu.Unlock()

	return o.called[name]
}

// failure returns the first error that a reconcile got; nil if there is none.
func (o *operator) failure() error {
	o.mu.Lock()
	defer o.mu.Unlock()

	return o.failed
}

func TestHiddenReconcilerIsSharded(t *testing.T) {
	f, o := newFixture(t), newOperator()
	mgr := f.manager(f.named("shard-0"))
	require.NoError(t, o.SetupWithManager(mgr, "maps"))

	mine := f.configMapOf("shard-0", "mine")
	f.configMapOf("shard-1", "other")
	f.launch(mgr.Start)
	f.eventually("it works on its own object", func() bool { return o.calls("mine") > 0 })

	f.label(mine, f.keys.Drain, "true")
	f.released(mine) // although the operator filters updates
	require.Zero(t, o.calls("other"))
	require.NoError(t, o.failure())
}

func TestCheckWritesIsForThoseWhoAsk(t *testing.T) {
	f := newFixture(t)
	options := f.named("shard-0")
	options.CheckWrites = true

	cm := f.configMapOf("shard-0", "a")
	err := f.manager(options).GetClient().Update(t.Context(), cm)
	require.ErrorIs(t, err, ErrNotHeld)

	options.CheckWrites = false
	require.NoError(t, f.manager(options).GetClient().Update(t.Context(), cm))
}

// collector is a runnable that does not say whether it needs leader election; starts is one that needs none.
type (
	collector struct{ manager.Runnable }
	starts    struct{ manager.Runnable }
)

func (starts) NeedLeaderElection() bool { return false }

func TestWhatIsNotDeclaredIsRefused(t *testing.T) {
	f := newFixture(t)
	mgr := f.manager(f.named("shard-0"))

	err := ctrl.NewControllerManagedBy(mgr).Named("others").For(&corev1.Secret{}).Complete(newOperator())
	require.ErrorContains(t, err, `controller "others" is not declared: it works on Secret, which is not one of`)
	require.ErrorContains(t, mgr.Add(&collector{}), `runnable "*shard.collector" is not declared`)
	require.ErrorContains(t, mgr.Add(manager.RunnableFunc(func(context.Context) error { return nil })),
		`runnable "github.com/clusterring/clusterring/pkg/shard" is not declared`)
	require.NoError(t, mgr.Add(starts{}), "what needs no leader election has run in every replica before")
}

// wrapper embeds a controller, which stays visible; box hides one.
type (
	wrapper struct{ ctrlcontroller.Controller }
	hidden  = ctrlcontroller.Controller
	box     struct{ hidden }
)

func (wrapper) NeedLeaderElection() bool { return false }

func TestControllerIsFoundInWhatEmbedsIt(t *testing.T) {
	f, o := newFixture(t), newOperator()
	mgr := f.manager(f.named("shard-0"))
	o.client = mgr.GetClient()
	c := f.unmanaged("maps", o)

	require.ErrorContains(t, mgr.Add(wrapper{c}),
		`controller "maps" is not declared: it works on a kind that the manager cannot see`)

	options := f.named("shard-0")
	options.Controllers = map[string]Placement{"maps": Sharded(&corev1.ConfigMap{})}
	mgr = f.manager(options)
	o.client = mgr.GetClient()
	require.NoError(t, mgr.Add(wrapper{c}))

	err := mgr.Add(box{c})
	require.ErrorIs(t, err, ErrUnknownController)
	require.ErrorContains(t, err, "shard.box")

	f.configMapOf("shard-0", "mine")
	f.configMapOf("shard-1", "other")
	require.NoError(t, c.Watch(source.Kind(mgr.GetCache(), client.Object(&corev1.ConfigMap{}),
		&handler.EnqueueRequestForObject{})))
	f.launch(mgr.Start)
	f.eventually("it works on its own object", func() bool { return o.calls("mine") > 0 })
	require.NoError(t, o.failure())
}

func TestRequestsOfAnotherTypeAreSharded(t *testing.T) {
	f := newFixture(t)
	options := f.named("shard-0")
	options.Controllers = map[string]Placement{"own": Sharded(&corev1.ConfigMap{})}

	_, err := ctrlcontroller.NewTyped("own", f.manager(options),
		ctrlcontroller.TypedOptions[string]{Reconciler: reconcile.TypedFunc[string](nil)})
	require.ErrorContains(t, err, `controller "own" is sharded, but its requests are not of type reconcile.Request`)

	options.Controllers["own"] = ShardedBy(&corev1.ConfigMap{}, func(name string) types.NamespacedName {
		return types.NamespacedName{Namespace: f.namespace, Name: name}
	})
	mine, other, mgr := f.configMapOf("shard-0", "mine"), f.configMapOf("shard-1", "other"), f.manager(options)
	got := make(chan error, 10)
	own := func(ctx context.Context, name string) (reconcile.Result, error) {
		got <- mgr.GetClient().Get(ctx, client.ObjectKey{Namespace: f.namespace, Name: name}, &corev1.ConfigMap{})

		return reconcile.Result{}, nil
	}
	c, err := ctrlcontroller.NewTyped("own", mgr,
		ctrlcontroller.TypedOptions[string]{Reconciler: reconcile.TypedFunc[string](own)})
	require.NoError(t, err)
	require.NoError(t, c.Watch(oneRequest(other.Name)))
	require.NoError(t, c.Watch(oneRequest(mine.Name)))
	f.launch(mgr.Start)
	require.NoError(t, receive(f, got, "it works on its own object"))
	require.Empty(t, got, "and on no other")
}

// oneRequest is a source of one request.
func oneRequest[R comparable](request R) source.TypedSource[R] {
	return source.TypedFunc[R](func(_ context.Context, q workqueue.TypedRateLimitingInterface[R]) error {
		q.Add(request)
		return nil
	})
}

// unmanaged returns a controller that was not added to a manager.
func (f *fixture) unmanaged(name string, r reconcile.Reconciler) ctrlcontroller.Controller {
	f.Helper()

	c, err := ctrlcontroller.NewUnmanaged(name, ctrlcontroller.Options{
		Reconciler: r, SkipNameValidation: new(true),
		LogConstructor: func(*reconcile.Request) logr.Logger { return logr.Discard() },
	})
	require.NoError(f, err)

	return c
}

func TestReconcileThatBypassesTheManagerIsRefused(t *testing.T) {
	f := newFixture(t)
	mgr := f.manager(f.named("shard-0"))
	require.NoError(t, newOperator().SetupWithManager(mgr, "maps"))
	f.configMapOf("shard-0", "mine")

	hidden := newOperator()
	hidden.client = mgr.GetClient()
	c := f.unmanaged("hidden", hidden)
	require.NoError(t, c.Watch(source.Kind(mgr.GetCache(), client.Object(&corev1.ConfigMap{}),
		&handler.EnqueueRequestForObject{})))

	// A runnable that needs no leader election starts it.
	require.NoError(t, mgr.Add(starts{c}))
	f.launch(mgr.Start)
	f.eventually("its first request fails", func() bool { return hidden.failure() != nil })
	require.ErrorIs(t, hidden.failure(), ErrNotAdded)
	require.ErrorContains(t, hidden.failure(), "works on ConfigMap")
}

func TestControllerInOneReplica(t *testing.T) {
	type result struct {
		name         string
		cached, live error
	}

	f, got, processes := newFixture(t), make(chan result), map[string]*process{}

	for _, name := range []string{"shard-0", "shard-1"} {
		options := f.named(name)
		options.Controllers = map[string]Placement{"one": OneReplica()}
		mgr := f.manager(options)
		require.NoError(t, newOperator().SetupWithManager(mgr, "maps"))

		reads := reconcile.Func(func(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
			list := &corev1.ConfigMapList{}
			select {
			case got <- result{name, mgr.GetCache().List(ctx, list), mgr.GetAPIReader().List(ctx, list)}:
			case <-ctx.Done():
			}

			return reconcile.Result{}, nil
		})
		c, err := ctrlcontroller.New("one", mgr, ctrlcontroller.Options{Reconciler: reads})
		require.NoError(t, err)
		require.NoError(t, c.Watch(oneRequest(reconcile.Request{})))

		processes[name] = f.launch(mgr.Start)
	}

	first := receive(f, got, "it runs in a replica")
	require.ErrorIs(t, first.cached, ErrPartialCache)
	require.NoError(t, first.live, "the API reader is not filtered")

	require.NoError(t, processes[first.name].stop(), "the Lease is released")
	require.NotEqual(t, first.name, receive(f, got, "it runs in the other replica").name)
}

func TestDeclarationsAreValidated(t *testing.T) {
	f := newFixture(t)

	for name, tc := range map[string]struct {
		change func(*Options)
		want   string
	}{
		"no kinds": {func(o *Options) { o.Kinds = nil }, "declare the resources of the ring"},
		"no main kind": {func(o *Options) { o.Kinds = Kinds{Controlled(&corev1.Secret{})} },
			"declare the resources of the ring"},
		"a nil kind": {func(o *Options) { o.Kinds = append(o.Kinds, Main((*corev1.Secret)(nil))) },
			"an object is nil"},
		"a kind twice": {func(o *Options) { o.Kinds = append(o.Kinds, Controlled(&corev1.ConfigMap{})) },
			"ConfigMap is declared twice"},
		"an unknown kind": {func(o *Options) { o.Kinds = append(o.Kinds, Main(&metav1.PartialObjectMetadata{})) },
			"PartialObjectMetadata"},
		"no placement": {func(o *Options) { o.Controllers = map[string]Placement{"a": {}} },
			`controller "a": declare it as`},
		"an undeclared kind": {
			func(o *Options) {
				o.Controllers = map[string]Placement{"a": Sharded(&corev1.Secret{})}
			}, `controller "a": kind of *v1.Secret: declare it`,
		},
		"a sharded runnable": {
			func(o *Options) {
				o.Runnables = map[string]Placement{"b": Sharded(&corev1.ConfigMap{})}
			}, `runnable "b": declare it as`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			options := f.named("shard-0")
			tc.change(&options)
			_, err := NewManager(f.config, f.options(), options)
			require.ErrorContains(t, err, tc.want)
		})
	}
}
