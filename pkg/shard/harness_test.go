package shard

import (
	"context"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/internal/testenv"
)

const (
	patience = 30 * time.Second
	interval = 20 * time.Millisecond

	processVariable = "SHARD_TEST_PROCESS"
)

// asProcess, if set, is what the test binary does instead of testing when a test has started it as a shard's process.
var asProcess func() int

func TestMain(m *testing.M) {
	if asProcess != nil && os.Getenv(processVariable) != "" {
		os.Exit(asProcess())
	}
	testenv.VerifyMain(m)
}

// fixture is one test's ring, namespace and administrator.
type fixture struct {
	*testing.T
	admin     client.Client
	config    *rest.Config
	namespace string
	ring      string
	cache     cache.Options // of managers
	probes    string        // the address of their probes
	client    client.Options
}

// newFixture uses the namespace's name for the ring, so that no test sees objects of another.
func newFixture(t *testing.T) *fixture {
	t.Helper()
	namespace := testenv.Namespace(t)

	return &fixture{T: t, admin: testenv.Client(t), config: testenv.Config(t), namespace: namespace, ring: namespace}
}

// adminWithWatch returns a client for interceptors.
func (f *fixture) adminWithWatch() client.WithWatch {
	f.Helper()
	admin, err := client.NewWithWatch(f.config, client.Options{})
	require.NoError(f, err)

	return admin
}

// shard returns a shard with a Lease that a slow machine can keep.
func (f *fixture) shard(name string) *Shard { return f.shardFor(name, 15*time.Second) }

// brief returns a shard with a Lease of three seconds, and a deadline of two, for tests that wait until they have
// passed.
func (f *fixture) brief() *Shard { return f.shardFor("shard-0", 3*time.Second) }

func (f *fixture) shardFor(name string, lease time.Duration) *Shard {
	f.Helper()
	s, err := New(Options{
		Ring: f.ring, Name: name, Namespace: f.namespace,
		LeaseDuration: lease, RenewDeadline: lease * 2 / 3, RetryPeriod: 200 * time.Millisecond,
		HoldOff: minHoldOff,
	})
	require.NoError(f, err)
	f.Cleanup(func() { s.term.close() })

	return s
}

// process is a running manager.
type process struct {
	f      *fixture
	mgr    manager.Manager
	ctx    context.Context //nolint:containedctx // that of the manager
	cancel context.CancelFunc
	done   chan struct{}
	err    error
}

// start runs a manager as the shard until the test ends. By default the shard's kinds are ConfigMap and Secret.
func (f *fixture) start(s *Shard, setup func(ctrl.Manager), kinds ...client.Object) *process {
	f.Helper()

	p := f.prepare(s, setup, kinds...)

	go func() {
		defer close(p.done)

		p.err = p.mgr.Start(p.ctx)
	}()

	return p
}

// prepare returns a manager that does not run yet.
func (f *fixture) prepare(s *Shard, setup func(ctrl.Manager), kinds ...client.Object) *process {
	f.Helper()

	if len(kinds) == 0 {
		kinds = []client.Object{&corev1.ConfigMap{}, &corev1.Secret{}}
	}

	options := manager.Options{
		Cache:                  f.cache,
		Client:                 f.client,
		Metrics:                metricsserver.Options{BindAddress: "0"},
		Controller:             config.Controller{SkipNameValidation: new(true), MaxConcurrentReconciles: 2},
		HealthProbeBindAddress: f.probes,
	}

	s.options.Kinds = Kinds{Main(kinds[0])}
	for _, kind := range kinds[1:] {
		s.options.Kinds = append(s.options.Kinds, Controlled(kind))
	}

	mgr, err := newManager(s, f.config, options)
	require.NoError(f, err)
	setup(mgr)

	ctx, cancel := context.WithCancel(context.Background())
	p := &process{f: f, mgr: mgr, ctx: ctx, cancel: cancel, done: make(chan struct{})}
	f.Cleanup(func() { p.stop() })

	return p
}

// stop asks the manager to stop, waits, and returns its error.
func (p *process) stop() error {
	p.cancel()
	p.wait()

	return p.err
}

func (p *process) wait() {
	p.f.Helper()
	receive(p.f, p.done, "the manager stops")
}

// controls adds a controller for the kind that runs the function as its reconciler. It returns how many reconciles have
// ended, including the wrapper's part and except those during the hold-off.
func (f *fixture) controls(mgr ctrl.Manager, s *Shard, obj client.Object, fn reconcile.Func) *atomic.Int64 {
	f.Helper()

	c := &counting{inner: s.Reconciler(mgr.GetClient(), obj, fn), shard: s}
	require.NoError(f, ctrl.NewControllerManagedBy(mgr).Named("test").For(obj, forOptions(obj)).Complete(c))

	return &c.ended
}

// handmade is what a test puts around a reconciler that it has wrapped by hand.
type handmade struct {
	reconcile.Func
	shard *Shard
}

func (h handmade) ofShard() *Shard { return h.shard }

// counting counts the reconciles of a wrapped reconciler that have ended.
type counting struct {
	inner reconcile.Reconciler
	shard *Shard
	ended atomic.Int64
}

func (c *counting) ofShard() *Shard { return c.shard }

func (c *counting) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	if c.shard.term.held() == nil {
		defer c.ended.Add(1)
	}

	return c.inner.Reconcile(ctx, req)
}

// configMap creates a ConfigMap that is assigned to the shard; it is unassigned if shard is empty.
func (f *fixture) configMap(s *Shard, name string) *corev1.ConfigMap {
	f.Helper()
	cm := &corev1.ConfigMap{ObjectMeta: f.meta(s, name)}
	require.NoError(f, f.admin.Create(f.Context(), cm))

	return cm
}

// secretOf creates a Secret that the ConfigMap controls, and assigns it to the shard.
func (f *fixture) secretOf(s *Shard, owner client.Object, kind schemaKind, name string) *corev1.Secret {
	f.Helper()
	secret := &corev1.Secret{ObjectMeta: f.meta(s, name)}
	secret.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: kind.apiVersion, Kind: kind.kind, Name: owner.GetName(), UID: owner.GetUID(), Controller: new(true),
	}}
	require.NoError(f, f.admin.Create(f.Context(), secret))

	return secret
}

type schemaKind struct{ apiVersion, kind string }

// meta returns metadata with this name; if the name is empty, the API server generates one.
func (f *fixture) meta(s *Shard, name string) metav1.ObjectMeta {
	meta := metav1.ObjectMeta{Namespace: f.namespace, Name: name, GenerateName: "object-"}
	if s != nil {
		meta.Labels = map[string]string{s.shardKey: s.Name()}
	}

	return meta
}

// label sets labels of the object; an empty value removes one.
func (f *fixture) label(obj client.Object, keysAndValues ...string) {
	f.Helper()

	var pairs []string

	for i := 0; i < len(keysAndValues); i += 2 {
		value := `"` + keysAndValues[i+1] + `"`
		if value == `""` {
			value = "null"
		}

		pairs = append(pairs, `"`+keysAndValues[i]+`":`+value)
	}

	patch := `{"metadata":{"labels":{` + strings.Join(pairs, ",") + `}}}`
	require.NoError(f, f.admin.Patch(f.Context(), obj, client.RawPatch(types.MergePatchType, []byte(patch))))
}

// released waits until the object carries neither the shard nor the drain label.
func (f *fixture) released(s *Shard, obj client.Object) {
	f.Helper()
	f.eventually("the labels are removed", func() bool {
		f.refresh(obj)
		labels := obj.GetLabels()
		_, drain := labels[s.drainKey]

		return labels[s.shardKey] == "" && !drain
	})
}

func (f *fixture) refresh(obj client.Object) {
	f.Helper()
	require.NoError(f, f.admin.Get(f.Context(), client.ObjectKeyFromObject(obj), obj))
}

// lease returns the shard's Lease, or an empty one if it does not exist.
func (f *fixture) lease(s *Shard) *coordinationv1.Lease {
	f.Helper()

	return testenv.Lease(f, f.admin, client.ObjectKey{Namespace: f.namespace, Name: s.Name()})
}

func holder(lease *coordinationv1.Lease) string { return ptr.Deref(lease.Spec.HolderIdentity, "") }

func (f *fixture) held(s *Shard) {
	f.Helper()
	f.eventually("the Lease is held", func() bool { return holder(f.lease(s)) == s.Name() })
}

// eventually waits until the condition holds. It calls the condition on the goroutine of the test, so the condition may
// fail the test.
func (f *fixture) eventually(what string, condition func() bool) {
	f.Helper()
	err := wait.PollUntilContextTimeout(f.Context(), interval, patience, true, func(context.Context) (bool, error) {
		return condition(), nil
	})
	require.NoError(f, err, what)
}

// receive waits for a value.
func receive[T any](f *fixture, from <-chan T, what string) T {
	f.Helper()

	return testenv.Receive(f, patience, from, what)
}

// nothing is a reconciler that does nothing.
func nothing(context.Context, reconcile.Request) (reconcile.Result, error) {
	return reconcile.Result{}, nil
}

// blocker is a reconciler that reports each call and does not return until it is released, regardless of its context.
type blocker struct {
	entered chan reconcile.Request
	proceed chan struct{}
}

func newBlocker() *blocker {
	return &blocker{entered: make(chan reconcile.Request, 100), proceed: make(chan struct{})}
}

func (b *blocker) reconcile(_ context.Context, req reconcile.Request) (reconcile.Result, error) {
	b.entered <- req
	<-b.proceed

	return reconcile.Result{}, nil
}
