// Command guide is a shard as the guide of kubernetes-controller-sharding v0.8.0 describes one: it creates a Secret for
// each ConfigMap.
//
// Of the repository, it imports only what that project's guide imports, and what records its work for a test.
package main

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"time"

	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/config"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/manager/signals"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	shardingv1alpha1 "github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	shardcontroller "github.com/clusterring/clusterring/pkg/shard/compat/controller"
	shardlease "github.com/clusterring/clusterring/pkg/shard/compat/lease"
	"github.com/clusterring/clusterring/tools/testkit/history"
)

const (
	// workers is how many objects a shard works on at a time, and work how long a reconcile lasts at least.
	workers = 5
	work    = 50 * time.Millisecond
)

// options are the flags.
type options struct {
	ring, namespace, shard, history, probes string

	lease, deadline, retry time.Duration
}

func main() {
	o := &options{}
	flag.StringVar(&o.ring, "clusterring", "example", "name of the ClusterRing")
	flag.StringVar(&o.namespace, "lease-namespace", "", "namespace of the Lease")
	flag.StringVar(&o.shard, "shard", "", "name of the shard; default: the host name")
	flag.DurationVar(&o.lease, "lease-duration", 15*time.Second, "how long the Lease is healthy after a renewal")
	flag.DurationVar(&o.deadline, "renew-deadline", 10*time.Second, "how long to try to renew the Lease")
	flag.DurationVar(&o.retry, "retry-period", 2*time.Second, "time between renewals")
	flag.StringVar(&o.history, "history", os.DevNull, "file to append the start and the end of each reconcile to")
	flag.StringVar(&o.probes, "health-probe-bind-address", "0", "address of /readyz; 0 for none")
	flag.Parse()

	logger := funcr.New(func(prefix, args string) { fmt.Fprintln(os.Stderr, prefix, args) },
		funcr.Options{LogTimestamp: true})
	log.SetLogger(logger)
	klog.SetLogger(logger)

	if err := o.run(signals.SetupSignalHandler()); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func (o *options) run(ctx context.Context) error {
	restConfig, err := config.GetConfig()
	if err != nil {
		return fmt.Errorf("read the kubeconfig: %w", err)
	}

	shardLease, err := shardlease.NewResourceLock(restConfig, nil, shardlease.Options{
		ClusterRingName: o.ring,
		LeaseNamespace:  o.namespace, // may be empty
		ShardName:       o.shard,     // may be empty
	})
	if err != nil {
		return fmt.Errorf("set up the Lease: %w", err)
	}

	mgr, err := manager.New(restConfig, manager.Options{
		Metrics:                metricsserver.Options{BindAddress: "0"},
		HealthProbeBindAddress: o.probes,

		LeaderElection:                      true,
		LeaderElectionResourceLockInterface: shardLease,
		LeaderElectionReleaseOnCancel:       true,
		LeaseDuration:                       &o.lease,
		RenewDeadline:                       &o.deadline,
		RetryPeriod:                         &o.retry,

		Cache: cache.Options{
			DefaultLabelSelector: labels.SelectorFromSet(labels.Set{
				shardingv1alpha1.LabelShard(shardingv1alpha1.KindClusterRing, "", o.ring): shardLease.Identity(),
			}),
		},
	})
	if err != nil {
		return fmt.Errorf("set up the manager: %w", err)
	}

	if err := mgr.AddReadyzCheck("ping", healthz.Ping); err != nil {
		return fmt.Errorf("set up the probe: %w", err)
	}

	file, err := history.Open(o.history)
	if err != nil {
		return fmt.Errorf("open the history: %w", err)
	}

	r := &reconciler{client: mgr.GetClient(),
		recorder: history.NewRecorder(file, os.Getpid(), shardLease.Identity, history.Now)}
	if err := r.addToManager(mgr, o.ring, shardLease.Identity()); err != nil {
		return err
	}

	if err := mgr.Start(ctx); err != nil {
		return fmt.Errorf("run the manager: %w", err)
	}

	return nil // the history stays open: workers may still write
}

type reconciler struct {
	client   client.Client
	recorder *history.Recorder
}

// addToManager adds the controller. The name of the shard is that of its Lease.
func (r *reconciler) addToManager(mgr manager.Manager, clusterRingName, shardName string) error {
	recorded := r.recorder.Reconciler(history.Subject{Controller: "example", Object: &corev1.ConfigMap{},
		Reader: r.client},
		history.Delay(clock.RealClock{}, work, r))

	err := builder.ControllerManagedBy(mgr).
		Named("example").
		For(&corev1.ConfigMap{},
			builder.WithPredicates(shardcontroller.Predicate(clusterRingName, shardName, dataChanged()))).
		Owns(&corev1.Secret{}).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers}).
		Complete(
			shardcontroller.NewShardedReconciler(mgr).
				For(&corev1.ConfigMap{}).
				InClusterRing(clusterRingName).
				WithShardName(shardName).
				MustBuild(recorded),
		)
	if err != nil {
		return fmt.Errorf("add the controller: %w", err)
	}

	return nil
}

// dataChanged passes no update that changes only labels, so it would hide drains.
func dataChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		was, isMap := e.ObjectOld.(*corev1.ConfigMap)
		is, stays := e.ObjectNew.(*corev1.ConfigMap)

		return isMap && stays && !maps.Equal(was.Data, is.Data)
	}}
}

// Reconcile creates the Secret of a ConfigMap.
func (r *reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	owner := &corev1.ConfigMap{}
	if err := r.client.Get(ctx, req.NamespacedName, owner); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}

	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: req.Namespace, Name: "dummy-" + req.Name}}
	if err := controllerutil.SetControllerReference(owner, secret, r.client.Scheme()); err != nil {
		return reconcile.Result{}, fmt.Errorf("own the secret: %w", err)
	}

	if err := r.client.Create(ctx, secret); err != nil && !apierrors.IsAlreadyExists(err) {
		return reconcile.Result{}, fmt.Errorf("create the secret: %w", err)
	}

	return reconcile.Result{}, nil
}
