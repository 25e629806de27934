package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
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
	"github.com/clusterring/clusterring/tools/example/setup"
	"github.com/clusterring/clusterring/tools/example/website"
)

// run runs the shard until the context ends, or until it loses its Lease, which is an error. Comments mark the lines that
// sharding adds.
func run(ctx context.Context, o options) error {
	log, err := o.Logger()
	if err != nil {
		return err
	}
	ctrl.SetLogger(log)
	klog.SetLogger(log)

	restConfig, err := o.Config()
	if err != nil {
		return err
	}

	slots, err := o.slotCount()
	if err != nil {
		return err
	}

	extras := &extras{}
	// Sharding: name the ring, and wait for a slot.
	shardOptions := shard.Options{
		Ring: o.ring, Name: o.shardName, Slots: slots, SlotNames: o.slotNames, ShardLabel: o.shardLabel, Pod: o.podName, Namespace: o.leaseNamespace,
		LeaseDuration: o.leaseDuration, RenewDeadline: o.renewDeadline, RetryPeriod: o.retryPeriod,
		HoldOff: o.holdOff, DrainTimeout: o.drainTimeout, PodUID: types.UID(o.podUID), Exit: extras.exit,
	}.WithEnvironment()
	if shardOptions.Slotted() {
		shardOptions.StandbyAddress = o.standbyAddress()
	}

	s, err := shard.Claim(ctx, restConfig, shardOptions)
	if err != nil {
		if ctx.Err() != nil {
			return nil //nolint:nilerr // it was told to stop while it waited
		}

		return fmt.Errorf("set up the shard (--ring, --shard-name, --slots, --slot-names, --shard-label, --lease-...): %w", err)
	}

	managerOptions := ctrl.Options{
		Scheme:                 setup.Scheme(),
		Logger:                 log,
		Metrics:                metricsserver.Options{BindAddress: o.MetricsAddress},
		HealthProbeBindAddress: o.ProbeAddress,
		Controller:             config.Controller{MaxConcurrentReconciles: o.Concurrency},
	}
	// Sharding: hold the shard's Lease, and watch only the shard's objects.
	if err := s.ConfigureManager(restConfig, &managerOptions, &v1alpha1.Website{}, &corev1.ConfigMap{}, &v1alpha1.Fleet{}, &v1alpha1.Ship{}); err != nil {
		return fmt.Errorf("set up the shard: %w", err)
	}

	mgr, err := ctrl.NewManager(restConfig, managerOptions)
	if err != nil {
		return setup.Explain(err, restConfig)
	}

	// Sharding without services: the shards elect one of themselves, which also assigns the objects of the ring.
	if o.embedded {
		err := embedded.AddTo(mgr, embedded.Options{
			Ring: s.Ring(), Namespace: s.Namespace(), LeaseDuration: o.leaseDuration, RenewDeadline: o.renewDeadline, RetryPeriod: o.retryPeriod,
		})
		if err != nil {
			return fmt.Errorf("set up the shard (--embedded): %w", err)
		}
	}

	if err := addChecks(ctx, mgr); err != nil {
		return err
	}

	if err := extras.open(ctx, o, s.Name(), mgr.GetClient()); err != nil {
		return err
	}

	if err := addControllers(ctx, mgr, s, extras.decorate); err != nil {
		return errors.Join(err, extras.close())
	}

	log.Info("Starting shard", "ring", s.Ring(), "shard", s.Name(), "lease", s.Namespace()+"/"+s.Name())
	// Sharding: work until the objects are drained. Start returns an error when the Lease is lost.
	if err := mgr.Start(s.UntilDrained(ctx)); err != nil {
		extras.wait()
		return fmt.Errorf("run the shard: %w", err) // workers may still write their history
	}

	return extras.close()
}

// standbyAddress is where a shard that waits for a slot answers the probes.
func (o options) standbyAddress() string {
	if o.ProbeAddress == "0" {
		return ""
	}

	return o.ProbeAddress
}

// decorate adds to a reconciler what only tests need.
type decorate func(controller string, obj client.Object, inner reconcile.Reconciler) reconcile.Reconciler

// addControllers adds the three controllers.
func addControllers(ctx context.Context, mgr ctrl.Manager, s *shard.Shard, decorate decorate) error {
	// Sharding: do not write after the Lease is lost, or to an object that has moved.
	c := s.CheckWrites(mgr.GetClient())

	websites := decorate("website", &v1alpha1.Website{}, &website.Reconciler{Client: c})

	err := ctrl.NewControllerManagedBy(mgr).Named("website").
		// Sharding: a drain is a change of labels, which the predicate alone would hide.
		For(&v1alpha1.Website{}, builder.WithPredicates(s.Predicate(predicate.GenerationChangedPredicate{}))).
		Owns(&corev1.ConfigMap{}).
		// Sharding: acknowledge drains, and work only on the shard's objects.
		Complete(s.Reconciler(c, &v1alpha1.Website{}, websites))
	if err != nil {
		return fmt.Errorf("set up the controller of Websites: %w", err)
	}

	if err := mgr.GetFieldIndexer().IndexField(ctx, &v1alpha1.Ship{}, fleet.OwnerIndex, fleet.ByOwner); err != nil {
		return fmt.Errorf("index the ships of fleets: %w", err)
	}

	fleets := decorate("fleet", &v1alpha1.Fleet{}, fleet.New(c))

	err = ctrl.NewControllerManagedBy(mgr).Named("fleet").
		For(&v1alpha1.Fleet{}, builder.WithPredicates(s.Predicate(predicate.GenerationChangedPredicate{}))).
		Owns(&v1alpha1.Ship{}).
		Complete(s.Reconciler(c, &v1alpha1.Fleet{}, fleets))
	if err != nil {
		return fmt.Errorf("set up the controller of Fleets: %w", err)
	}

	checksums := decorate("checksum", &corev1.ConfigMap{}, &checksum.Reconciler{Client: c})

	err = ctrl.NewControllerManagedBy(mgr).Named("checksum").
		For(&corev1.ConfigMap{}, builder.WithPredicates(s.Predicate())).
		Complete(s.Reconciler(c, &corev1.ConfigMap{}, checksums))
	if err != nil {
		return fmt.Errorf("set up the controller of checksums: %w", err)
	}

	return nil
}

// addChecks adds /healthz, and a /readyz that passes while the shard holds its Lease and was not told to stop.
func addChecks(ctx context.Context, mgr ctrl.Manager) error {
	holding := func(*http.Request) error {
		select {
		case <-ctx.Done():
			return errors.New("the shard is stopping")
		case <-mgr.Elected():
			return nil
		default:
			return errors.New("the shard does not hold its Lease yet")
		}
	}
	if err := errors.Join(mgr.AddHealthzCheck("ping", healthz.Ping), mgr.AddReadyzCheck("lease", holding)); err != nil {
		return fmt.Errorf("set up the health checks: %w", err)
	}

	return nil
}
