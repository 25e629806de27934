// Command shards is a shard of fault runs and measurements that runs the controllers of the example without pkg/shard.
//
// It holds its Lease by the leader election of client-go, caches the objects with its label, and releases an object by
// removing both labels at once. It announces nothing, and ignores the handover annotation. Except that it holds off
// after it has taken its Lease, it behaves like shards of kubernetes-controller-sharding v0.8.0, the prior art.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/tools/example/api/v1alpha1"
	"github.com/clusterring/clusterring/tools/example/fleet"
	"github.com/clusterring/clusterring/tools/example/website"
	"github.com/clusterring/clusterring/tools/testkit/history"
)

// holdOff is how long the contract demands that a shard waits which has taken a free Lease.
const holdOff = 1500 * time.Millisecond

// options are flags of the example.
type options struct {
	ring, name, namespace                           string // of the shard and its Lease
	leaseDuration, renewDeadline, retryPeriod, work time.Duration
	kubeconfig, historyFile, metrics, probes        string
	changeDuration                                  time.Duration
	qps                                             float32
	concurrency                                     int
	controllers                                     []string
}

func main() {
	o := &options{}
	flags := pflag.CommandLine
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "")
	flags.StringVar(&o.ring, "ring", "", "")
	flags.StringVar(&o.name, "shard-name", "", "")
	flags.StringVar(&o.namespace, "lease-namespace", "", "")
	flags.DurationVar(&o.leaseDuration, "lease-duration", 15*time.Second, "")
	flags.DurationVar(&o.renewDeadline, "lease-renew-deadline", 10*time.Second, "")
	flags.DurationVar(&o.retryPeriod, "lease-retry-period", 2*time.Second, "")
	flags.DurationVar(&o.work, "work-duration", 0, "")
	flags.DurationVar(&o.changeDuration, "change-duration", 0, "")
	flags.Float32Var(&o.qps, "kube-api-qps", 100, "")
	flags.IntVar(&o.concurrency, "concurrency", 1, "")
	flags.StringSliceVar(&o.controllers, "controllers", []string{"website", "fleet"}, "")
	flags.StringVar(&o.metrics, "metrics-bind-address", "0", "")
	flags.StringVar(&o.probes, "health-probe-bind-address", "0", "")
	flags.StringVar(&o.historyFile, "history-file", os.DevNull, "")

	flags.ParseErrorsAllowlist.UnknownFlags = true // such as addresses, which the example has

	pflag.Parse()
	ctrl.SetLogger(klog.Background())

	if err := o.run(ctrl.SetupSignalHandler()); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// run runs the shard. Workers may write their history until the process ends.
func (o *options) run(ctx context.Context) error {
	file, err := history.Open(o.historyFile)
	if err != nil {
		return fmt.Errorf("open the history: %w", err)
	}

	mgr, err := o.manager()
	if err != nil {
		return fmt.Errorf("set up the manager: %w", err)
	}

	recorder := history.NewRecorder(file, os.Getpid(), func() string { return o.name }, history.Now)
	if err := o.addTo(ctx, mgr, recorder); err != nil {
		return fmt.Errorf("set up the controllers: %w", err)
	}

	return mgr.Start(ctx) //nolint:wrapcheck // it says everything
}

func (o *options) manager() (ctrl.Manager, error) {
	config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return nil, err //nolint:wrapcheck // the caller does
	}

	config.QPS, config.Burst = o.qps, int(2*o.qps)

	leases, errOfClient := coordinationv1.NewForConfig(config)

	scheme := runtime.NewScheme()
	if err := errors.Join(errOfClient, clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, err
	}

	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme: scheme, Metrics: server.Options{BindAddress: o.metrics}, HealthProbeBindAddress: o.probes,
		Controller: ctrlconfig.Controller{MaxConcurrentReconciles: o.concurrency},
		Cache: cache.Options{
			DefaultLabelSelector: labels.SelectorFromSet(labels.Set{contract.ShardLabel(o.ring): o.name}),
		},

		LeaderElection: true, LeaderElectionReleaseOnCancel: true,
		LeaseDuration: &o.leaseDuration, RenewDeadline: &o.renewDeadline, RetryPeriod: &o.retryPeriod,
		LeaderElectionResourceLockInterface: &resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: o.namespace, Name: o.name}, Client: leases,
			LockConfig: resourcelock.ResourceLockConfig{Identity: o.name},
			Labels:     map[string]string{contract.LabelClusterRing: o.ring},
		},
	})
	if err != nil {
		return nil, err //nolint:wrapcheck // the caller does
	}

	return mgr, mgr.AddReadyzCheck("ping", healthz.Ping) //nolint:wrapcheck // the same
}

// addTo adds the controllers of the example.
func (o *options) addTo(ctx context.Context, mgr ctrl.Manager, recorder *history.Recorder) error {
	c := mgr.GetClient()
	errs := []error{mgr.GetFieldIndexer().IndexField(ctx, &v1alpha1.Ship{}, fleet.OwnerIndex, fleet.ByOwner)}

	// Controllers reconcile nothing before the process has taken the Lease.
	works := sync.OnceValue(func() time.Time { return time.Now().Add(holdOff) })

	for _, controller := range []struct {
		name      string
		main, own client.Object
		inner     reconcile.Reconciler
	}{
		{
			"website", &v1alpha1.Website{}, &corev1.ConfigMap{},
			website.Slow(c, o.changeDuration, 0, &website.Reconciler{Client: c}),
		},
		{"fleet", &v1alpha1.Fleet{}, &v1alpha1.Ship{}, fleet.New(c)},
	} {
		if !slices.Contains(o.controllers, controller.name) {
			continue
		}

		recorded := recorder.Reconciler(history.Subject{Controller: controller.name, Object: controller.main, Reader: c},
			history.Delay(clock.RealClock{}, o.work, controller.inner))
		errs = append(errs, ctrl.NewControllerManagedBy(mgr).Named(controller.name).For(controller.main).
			Owns(controller.own).Complete(&sharded{
			options: o, client: c, empty: controller.main, inner: recorded,
			holdsOff: func() time.Duration { return time.Until(works()) },
		}))
	}

	return errors.Join(errs...)
}

// sharded releases draining objects, and reconciles the others.
type sharded struct {
	*options

	client client.Client
	empty  client.Object
	inner  reconcile.Reconciler
	// holdsOff returns how long the shard still holds off.
	holdsOff func() time.Duration
}

// Reconcile implements reconcile.Reconciler.
func (s *sharded) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	if wait := s.holdsOff(); wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, nil
	}

	obj, _ := s.empty.DeepCopyObject().(client.Object)
	if err := s.client.Get(ctx, req.NamespacedName, obj); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}

	if obj.GetLabels()[contract.ShardLabel(s.ring)] != s.name {
		return reconcile.Result{}, nil
	}

	if _, drained := obj.GetLabels()[contract.DrainLabel(s.ring)]; !drained {
		return s.inner.Reconcile(ctx, req) //nolint:wrapcheck // unchanged
	}

	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"resourceVersion": obj.GetResourceVersion(),
		"labels":          map[string]any{contract.ShardLabel(s.ring): nil, contract.DrainLabel(s.ring): nil},
	}})
	if err == nil {
		err = s.client.Patch(ctx, obj, client.RawPatch(types.MergePatchType, patch))
	}

	return reconcile.Result{}, client.IgnoreNotFound(err)
}
