// Command plain is a shard of the example's ring that uses no library of ours: it holds its Lease by the leader election of client-go, caches what
// carries its label, and gives an object up by removing both labels at once. It knows nothing of the handover annotation. It stands for
// shards of the prior art, kubernetes-controller-sharding v0.8.0, whose contract it keeps.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	shardingv1alpha1 "github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/example/api/v1alpha1"
	"github.com/clusterring/clusterring/tools/example/fleet"
	"github.com/clusterring/clusterring/tools/example/history"
	"github.com/clusterring/clusterring/tools/example/website"
)

// options are the flags, those of the example that fault runs set.
type options struct {
	kubeconfig, ring, name, namespace, historyFile string
	duration, deadline, period, work               time.Duration
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, parse()); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1) //nolint:gocritic // nothing is deferred that the end of the process does not do
	}
}

func parse() options {
	var o options
	pflag.StringVar(&o.kubeconfig, "kubeconfig", "", "file that says how to reach the API server")
	pflag.StringVar(&o.ring, "ring", "", "name of the ClusterRing")
	pflag.StringVar(&o.name, "shard-name", "", "name of the shard and its Lease")
	pflag.StringVar(&o.namespace, "lease-namespace", "", "namespace of the Lease")
	pflag.StringVar(&o.historyFile, "history-file", "", "append each reconcile's start and end to this file")
	pflag.DurationVar(&o.duration, "lease-duration", 0, "how long the Lease is healthy after a renewal")
	pflag.DurationVar(&o.deadline, "lease-renew-deadline", 0, "how long to try to renew the Lease")
	pflag.DurationVar(&o.period, "lease-retry-period", 0, "time between renewals")
	pflag.DurationVar(&o.work, "work-duration", 0, "make each reconcile take longer by this time")
	pflag.String("metrics-bind-address", "0", "is not looked at")
	pflag.String("health-probe-bind-address", "0", "is not looked at")
	pflag.Parse()
	return o
}

func run(ctx context.Context, o options) error {
	ctrl.SetLogger(funcr.New(func(prefix, args string) { fmt.Fprintln(os.Stderr, prefix, args) }, funcr.Options{LogTimestamp: true}))
	config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return fmt.Errorf("read the kubeconfig: %w", err)
	}
	config.QPS, config.Burst = 100, 200
	leases, err := coordinationv1.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make a client for the Lease: %w", err)
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return fmt.Errorf("make a scheme: %w", err)
	}
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme: scheme, Metrics: server.Options{BindAddress: "0"}, HealthProbeBindAddress: "0",
		Cache: cache.Options{DefaultLabelSelector: labels.SelectorFromSet(labels.Set{shardingv1alpha1.ShardLabel(o.ring): o.name})},

		LeaderElection: true, LeaderElectionReleaseOnCancel: true,
		LeaseDuration: &o.duration, RenewDeadline: &o.deadline, RetryPeriod: &o.period,
		LeaderElectionResourceLockInterface: &resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: o.namespace, Name: o.name}, Client: leases,
			LockConfig: resourcelock.ResourceLockConfig{Identity: o.name},
			Labels:     map[string]string{shardingv1alpha1.LabelClusterRing: o.ring},
		},
	})
	if err != nil {
		return fmt.Errorf("set up the manager: %w", err)
	}
	file, err := os.OpenFile(o.historyFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open the history: %w", err)
	}
	recorder := history.NewRecorder(file, os.Getpid(), o.name, now)
	if err := add(ctx, mgr, o, recorder); err != nil {
		return errors.Join(err, file.Close())
	}
	if err := mgr.Start(ctx); err != nil {
		return fmt.Errorf("run the shard: %w", err) // workers may still write their history
	}
	if err := file.Close(); err != nil {
		return fmt.Errorf("close the history: %w", err)
	}
	return nil
}

// now is a point in time, by a clock that all processes share.
func now() history.Stamp {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // every system that this builds for has it
	return history.Stamp{Time: time.Now(), Monotonic: ts.Nano()}
}

// add adds the controllers of the example.
func add(ctx context.Context, mgr ctrl.Manager, o options, recorder *history.Recorder) error {
	c := mgr.GetClient()
	if err := mgr.GetFieldIndexer().IndexField(ctx, &v1alpha1.Ship{}, fleet.OwnerIndex, fleet.ByOwner); err != nil {
		return fmt.Errorf("index the ships of fleets: %w", err)
	}
	for _, controller := range []struct {
		name      string
		main, own client.Object
		inner     reconcile.Reconciler
	}{
		{"website", &v1alpha1.Website{}, &corev1.ConfigMap{}, &website.Reconciler{Client: c}},
		{"fleet", &v1alpha1.Fleet{}, &v1alpha1.Ship{}, fleet.New(c)},
	} {
		recorded := recorder.Reconciler(history.Subject{Controller: controller.name, Object: controller.main, Reader: c},
			history.Delay(clock.RealClock{}, o.work, controller.inner))
		err := ctrl.NewControllerManagedBy(mgr).Named(controller.name).For(controller.main).Owns(controller.own).
			Complete(&sharded{client: c, empty: controller.main, shard: o.name, ring: o.ring, inner: recorded})
		if err != nil {
			return fmt.Errorf("set up the controller %s: %w", controller.name, err)
		}
	}
	return nil
}

// sharded gives objects up that are drained, and works on the others.
type sharded struct {
	client      client.Client
	empty       client.Object
	shard, ring string
	inner       reconcile.Reconciler
}

// Reconcile implements reconcile.Reconciler.
func (s *sharded) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	obj, _ := s.empty.DeepCopyObject().(client.Object)
	if err := s.client.Get(ctx, req.NamespacedName, obj); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if obj.GetLabels()[shardingv1alpha1.ShardLabel(s.ring)] != s.shard {
		return reconcile.Result{}, nil
	}
	if _, drained := obj.GetLabels()[shardingv1alpha1.DrainLabel(s.ring)]; !drained {
		return s.inner.Reconcile(ctx, req) //nolint:wrapcheck // it is passed on
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"resourceVersion": obj.GetResourceVersion(),
		"labels":          map[string]any{shardingv1alpha1.ShardLabel(s.ring): nil, shardingv1alpha1.DrainLabel(s.ring): nil},
	}})
	if err == nil {
		err = s.client.Patch(ctx, obj, client.RawPatch(types.MergePatchType, patch))
	}
	if client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, fmt.Errorf("give an object up: %w", err)
	}
	return reconcile.Result{}, nil
}
