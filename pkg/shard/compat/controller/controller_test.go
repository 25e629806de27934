package controller_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/pkg/internal/testenv"
	"github.com/clusterring/clusterring/pkg/shard/compat/controller"
	"github.com/clusterring/clusterring/pkg/shard/compat/lease"
	"github.com/clusterring/clusterring/pkg/shard/shardtest"
)

const (
	patience = 30 * time.Second
	interval = 20 * time.Millisecond
)

func TestMain(m *testing.M) { testenv.VerifyMain(m) }

// fixture is a ring without services in a namespace of the same name.
type fixture struct {
	*testing.T
	*shardtest.Ring

	admin     client.Client
	namespace string
}

func newFixture(t *testing.T) fixture {
	t.Helper()
	namespace, admin := testenv.Namespace(t), testenv.Client(t)

	return fixture{T: t, Ring: shardtest.New(t, admin, namespace), admin: admin, namespace: namespace}
}

// configMap creates the ConfigMap a of shard-0.
func (f fixture) configMap() *corev1.ConfigMap {
	f.Helper()
	cm := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: "a", Labels: f.Labels("shard-0")},
	}
	require.NoError(f, f.admin.Create(f.Context(), cm))

	return cm
}

// builder returns the builder for a manager that does not run.
func (f fixture) builder() *controller.Builder {
	f.Helper()

	mgr, err := manager.New(testenv.Config(f), manager.Options{Metrics: metricsserver.Options{BindAddress: "0"}})
	require.NoError(f, err)

	return controller.NewShardedReconciler(mgr).For(&corev1.ConfigMap{}).InClusterRing(f.namespace).
		WithShardName("shard-0")
}

func request(obj client.Object) reconcile.Request {
	return reconcile.Request{NamespacedName: client.ObjectKeyFromObject(obj)}
}

// stale is a client whose reads return one object as it was.
type stale struct {
	client.Client

	obj *corev1.ConfigMap
}

func (s stale) Get(_ context.Context, _ client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	s.obj.DeepCopyInto(obj.(*corev1.ConfigMap)) //nolint:forcetypeassert // the kind of the test
	return nil
}

func TestPredicate(t *testing.T) {
	none, all := predicate.NewPredicateFuncs(func(client.Object) bool { return false }), predicate.Funcs{}
	obj := func(labels ...string) client.Object {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{}}}
		for i := 0; i < len(labels); i += 2 {
			cm.Labels[labels[i]] = labels[i+1]
		}

		return cm
	}
	shardLabel, drainLabel := contract.ShardLabel("example"), contract.DrainLabel("example")

	for _, tc := range []struct {
		name  string
		obj   client.Object
		inner []predicate.Predicate
		want  bool
	}{
		{"unassigned", obj(), nil, false},
		{"of another shard", obj(shardLabel, "b"), nil, false},
		{"of another ring", obj(contract.ShardLabel("other"), "a"), nil, false},
		{"its own", obj(shardLabel, "a"), nil, true},
		{"its own, all match", obj(shardLabel, "a"), []predicate.Predicate{all, all}, true},
		{"its own, one does not match", obj(shardLabel, "a"), []predicate.Predicate{all, none}, false},
		{"drained, none matches", obj(shardLabel, "a", drainLabel, "true"), []predicate.Predicate{none}, true},
		{"drained by another shard", obj(shardLabel, "b", drainLabel, "true"), nil, true},
		{"released", obj(drainLabel, ""), []predicate.Predicate{none}, true},
		{"drained of another ring", obj(shardLabel, "a", contract.DrainLabel("other"), "true"),
			[]predicate.Predicate{none}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := controller.Predicate("example", "a", tc.inner...)
			require.Equal(t, tc.want, p.Create(event.CreateEvent{Object: tc.obj}))
			require.Equal(t, tc.want, p.Update(event.UpdateEvent{ObjectOld: obj(), ObjectNew: tc.obj}))
			require.Equal(t, tc.want, p.Delete(event.DeleteEvent{Object: tc.obj}))
			require.Equal(t, tc.want, p.Generic(event.GenericEvent{Object: tc.obj}))
		})
	}
}

// blocker is a reconciler that reports each call and does not return until it is released, regardless of its context.
type blocker struct{ entered, proceed chan struct{} }

func newBlocker() blocker { return blocker{make(chan struct{}, 100), make(chan struct{})} }

// released returns a blocker that does not block.
func released() blocker {
	b := newBlocker()
	close(b.proceed)

	return b
}

func (b blocker) Reconcile(context.Context, reconcile.Request) (reconcile.Result, error) {
	b.entered <- struct{}{}
	<-b.proceed

	return reconcile.Result{}, nil
}

// process is a manager that is set up as the guide prints it.
type process struct {
	cancel context.CancelFunc
	done   chan error
	ended  atomic.Int64 // reconciles, including those that the wrapper has ended
}

func (f fixture) start(reconcilers ...reconcile.Reconciler) *process {
	f.Helper()

	lock, err := lease.NewResourceLock(testenv.Config(f), nil, lease.Options{
		ClusterRingName: f.namespace, LeaseNamespace: f.namespace, ShardName: "shard-0",
	})
	require.NoError(f, err)

	shardLabel := v1alpha1.LabelShard(v1alpha1.KindClusterRing, "", f.namespace)

	mgr, err := manager.New(testenv.Config(f), manager.Options{
		LeaderElection: true, LeaderElectionResourceLockInterface: lock, LeaderElectionReleaseOnCancel: true,
		LeaseDuration: new(15 * time.Second), RenewDeadline: new(10 * time.Second), RetryPeriod: new(200 * time.Millisecond),
		Cache:   cache.Options{DefaultLabelSelector: labels.SelectorFromSet(labels.Set{shardLabel: lock.Identity()})},
		Metrics: metricsserver.Options{BindAddress: "0"}, Controller: config.Controller{SkipNameValidation: new(true)},
	})
	require.NoError(f, err)

	p := &process{done: make(chan error, 1)}

	for _, r := range reconcilers {
		sharded := controller.NewShardedReconciler(mgr).
			For(&corev1.ConfigMap{}).
			InClusterRing(f.namespace).
			WithShardName(lock.Identity()).
			MustBuild(r)
		require.NoError(f, builder.ControllerManagedBy(mgr).
			For(&corev1.ConfigMap{},
				builder.WithPredicates(controller.Predicate(f.namespace, lock.Identity(), predicate.GenerationChangedPredicate{}))).
			Owns(&corev1.Secret{}).
			Complete(reconcile.Func(func(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
				defer p.ended.Add(1)

				return sharded.Reconcile(ctx, req)
			})))
	}

	var ctx context.Context

	ctx, p.cancel = context.WithCancel(context.Background())

	go func() { p.done <- mgr.Start(ctx) }()

	return p
}

// All reconcilers of the shard belong together, although only their manager connects them.
func TestDrainWaitsForTheSecondController(t *testing.T) {
	f := newFixture(t)
	cm := f.configMap()
	first, second := newBlocker(), newBlocker()

	p := f.start(first, second)
	<-first.entered
	<-second.entered

	before := p.ended.Load()

	f.Drain(cm)
	close(first.proceed)
	require.Eventually(t, func() bool { return p.ended.Load() >= before+2 }, patience, interval,
		"the first has seen the drain, and left")
	f.RequireOwned(cm, "shard-0")

	close(second.proceed)
	require.Eventually(t, func() bool {
		require.NoError(t, f.admin.Get(t.Context(), client.ObjectKeyFromObject(cm), cm))
		return len(cm.Labels) == 0
	}, patience, interval)

	p.cancel()
	require.NoError(t, <-p.done)

	lease := testenv.Lease(f, f.admin, client.ObjectKey{Namespace: f.namespace, Name: "shard-0"})
	require.Empty(t, *lease.Spec.HolderIdentity)
}

// A cache that is older than the term shows objects that have moved away while the Lease was free.
func TestNoReconcileFromAStaleCache(t *testing.T) {
	f, do := newFixture(t), released()
	cm := f.configMap()
	r := f.builder().WithClient(stale{f.admin, cm.DeepCopy()}).MustBuild(do)
	f.Assign(cm, "shard-1")

	result, err := r.Reconcile(t.Context(), request(cm))
	require.NoError(t, err)
	require.NotZero(t, result.RequeueAfter, "the cache will show it")
	require.Empty(t, do.entered)
}

// What moved with the object may not be in the cache, which nothing tells.
func TestHandoverIsNotAwaited(t *testing.T) {
	f, do := newFixture(t), released()
	cm := f.configMap()
	cm.Annotations = map[string]string{contract.HandoverAnnotation(f.namespace): `{"secrets":"99999999999"}`}
	require.NoError(t, f.admin.Update(t.Context(), cm))

	_, err := f.builder().WithClient(f.admin).MustBuild(do).Reconcile(t.Context(), request(cm))
	require.NoError(t, err)
	require.Len(t, do.entered, 1)
}

func TestBuilder(t *testing.T) {
	f, do := newFixture(t), released()

	r := f.builder().WithClient(f.admin).MustBuild(do)
	_, err := r.Reconcile(t.Context(), request(f.configMap()))
	require.NoError(t, err)
	require.Len(t, do.entered, 1)

	for want, b := range map[string]*controller.Builder{
		"For, ": f.builder().For(nil), "WithShardName, ": f.builder().WithShardName(""),
		"ring: set the name":            f.builder().InClusterRing(""),
		`name: "Not_A_Name" is invalid`: f.builder().WithShardName("Not_A_Name"),
	} {
		_, err = b.Build(do)
		require.ErrorContains(t, err, want)
		require.Panics(t, func() { b.MustBuild(do) })
	}

	_, err = f.builder().Build(nil)
	require.ErrorContains(t, err, "a reconciler that is not nil")
}
