// Command example is a small controller that runs as one shard of a ring. Copy it for your own controller. Comments in
// this file mark what sharding adds to an ordinary controller.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/shard"
	"github.com/clusterring/clusterring/services/embedded"
	"github.com/clusterring/clusterring/tools/example/api/v1alpha1"
	"github.com/clusterring/clusterring/tools/example/checksum"
	"github.com/clusterring/clusterring/tools/example/fleet"
	"github.com/clusterring/clusterring/tools/example/website"
)

// run runs the shard until the context ends, or until it loses its Lease, which is an error. Comments mark the lines
// that sharding adds.
func run(ctx context.Context, o options, log logr.Logger) error {
	restConfig, err := o.config()
	if err != nil {
		return err
	}

	extras := &extras{}

	managerOptions := ctrl.Options{
		Scheme:                 newScheme(),
		Logger:                 log,
		Metrics:                metricsserver.Options{BindAddress: o.metricsAddress},
		HealthProbeBindAddress: o.probeAddress,
		PprofBindAddress:       o.pprofAddress,
		Controller:             config.Controller{MaxConcurrentReconciles: o.concurrency},
	}
	if o.unsharded {
		return unsharded(ctx, restConfig, managerOptions, o)
	}

	// Sharding: name the ring, and the kinds of its resources. Without sharding, this is ctrl.NewManager(restConfig,
	// managerOptions).
	mgr, err := shard.NewManager(restConfig, managerOptions, o.shard(extras.exit))
	if err != nil {
		return explain(err, restConfig)
	}

	// Sharding without services: the shards elect one of themselves, which also assigns the objects of the ring.
	if o.embedded {
		err := embedded.AddTo(mgr, embedded.Options{
			Ring: mgr.Shard().Ring(), Namespace: mgr.Shard().Namespace(), LeaseDuration: o.leaseDuration,
			RenewDeadline: o.renewDeadline, RetryPeriod: o.retryPeriod,
		})
		if err != nil {
			return fmt.Errorf("set up the shard (--embedded): %w", err)
		}
	}

	if err := mgr.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return fmt.Errorf("set up the health check: %w", err)
	}

	if err := extras.open(ctx, o, mgr); err != nil {
		return err
	}

	if err := addControllers(ctx, mgr, extras.decorate, o.controllers); err != nil {
		return fmt.Errorf("set up the controllers: %w", err)
	}

	log.Info("Starting shard", "ring", mgr.Shard().Ring(), "namespace", mgr.Shard().Namespace())
	// Sharding: Start waits for a slot, works until the objects are drained, and returns an error when the Lease is lost.
	if err := mgr.Start(ctx); err != nil {
		extras.wait()
		return fmt.Errorf("run the shard: %w", err)
	}

	return nil
}

// decorate adds to a reconciler what only tests need.
type decorate func(controller string, obj client.Object, inner reconcile.Reconciler) reconcile.Reconciler

// controllers are the names of the controllers.
var controllers = []string{"website", "fleet", "checksum"}

// addControllers adds the named controllers. Sharding changes nothing in them.
func addControllers(ctx context.Context, mgr ctrl.Manager, decorate decorate, names []string) error {
	// First, because it fails where the example is not installed.
	if slices.Contains(names, "fleet") {
		if err := mgr.GetFieldIndexer().IndexField(ctx, &v1alpha1.Ship{}, fleet.OwnerIndex, fleet.ByOwner); err != nil {
			return explain(err, mgr.GetConfig())
		}
	}

	c := mgr.GetClient()
	add := map[string]func() error{
		"website": func() error {
			return ctrl.NewControllerManagedBy(mgr).Named("website").
				For(&v1alpha1.Website{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
				Owns(&corev1.ConfigMap{}).
				Complete(decorate("website", &v1alpha1.Website{}, &website.Reconciler{Client: c}))
		},
		"fleet": func() error {
			return ctrl.NewControllerManagedBy(mgr).Named("fleet").
				For(&v1alpha1.Fleet{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
				Owns(&v1alpha1.Ship{}).
				Complete(decorate("fleet", &v1alpha1.Fleet{}, fleet.New(c)))
		},
		"checksum": func() error {
			return ctrl.NewControllerManagedBy(mgr).Named("checksum").
				For(&corev1.ConfigMap{}).
				Complete(decorate("checksum", &corev1.ConfigMap{}, &checksum.Reconciler{Client: c}))
		},
	}

	var errs []error
	for _, name := range names {
		errs = append(errs, add[name]())
	}

	return errors.Join(errs...)
}

func main() {
	os.Exit(start(os.Args[1:]))
}

// start returns the exit code. It must not be zero when the shard has lost its Lease: workers may still be running, and
// only the end of the process stops them for certain.
func start(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	options, err := parse(args, os.Stdout)
	if errors.Is(err, pflag.ErrHelp) {
		return 0
	}

	var log logr.Logger
	if err == nil {
		log, err = options.logger()
	}

	if err == nil {
		ctrl.SetLogger(log)
		klog.SetLogger(log)
		err = run(ctx, options, log)
	}

	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)

		return 1
	}

	return 0
}
