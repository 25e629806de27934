package shard_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

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

	return &operators{T: t, Ring: shardtest.New(t, admin, namespace), admin: admin, config: testenv.Config(t), namespace: namespace}
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
		LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 200 * time.Millisecond, HoldOff: 1500 * time.Millisecond,
		Kinds: shard.Kinds{shard.Main(&corev1.ConfigMap{})},
	}
}

// manager returns a manager whose controllers are sharded.
func (f *operators) manager(o shard.Options) *shard.Manager {
	f.Helper()
	mgr, err := shard.NewManager(f.config, f.options(), o)
	require.NoError(f, err)

	return mgr
}

// start runs the manager until the test ends, or until the returned function is called, which returns its error.
func (f *operators) start(mgr manager.Manager) (stop func() error) {
	f.Helper()

	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})

	var err error

	go func() {
		defer close(done)

		err = mgr.Start(ctx)
	}()

	stop = func() error {
		cancel()

		receive(f, done, "the manager stops")

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
		For(&corev1.ConfigMap{}, builder.WithPredicates(predicate.Funcs{UpdateFunc: func(event.UpdateEvent) bool { return false }})).
		Complete(o)
}

// Reconcile implements reconcile.Reconciler.
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
