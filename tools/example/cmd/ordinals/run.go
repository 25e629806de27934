package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/shard/ordinal"
	"github.com/clusterring/clusterring/tools/example/api/v1alpha1"
	"github.com/clusterring/clusterring/tools/example/checksum"
	"github.com/clusterring/clusterring/tools/example/history"
	"github.com/clusterring/clusterring/tools/example/setup"
	"github.com/clusterring/clusterring/tools/example/website"
)

// run runs the replica until the context ends. Comments mark the lines that sharing adds.
func run(ctx context.Context, o options, log logr.Logger) (err error) {
	restConfig, err := o.Config()
	if err != nil {
		return err
	}

	// Sharing: which ordinal is this, of how many?
	p, err := ordinal.New(ctx, restConfig, ordinal.Options{
		PodName: o.podName, Namespace: o.namespace,
		Hash: ordinal.ControllerKey(), // a Website and its ConfigMap belong together
	})
	if err != nil {
		return fmt.Errorf("find the place of this process (--pod-name, --namespace): %w", err)
	}

	managerOptions := ctrl.Options{
		Scheme:                 setup.Scheme(),
		Logger:                 log,
		Metrics:                metricsserver.Options{BindAddress: o.MetricsAddress},
		HealthProbeBindAddress: o.ProbeAddress,
		PprofBindAddress:       o.PprofAddress,
		Controller:             config.Controller{MaxConcurrentReconciles: o.Concurrency},
	}
	// Sharing: keep only stubs of the objects of other Pods.
	if err := p.ConfigureManager(&managerOptions, &v1alpha1.Website{}, &corev1.ConfigMap{}); err != nil {
		return fmt.Errorf("set up the manager: %w", err)
	}

	mgr, err := ctrl.NewManager(restConfig, managerOptions)
	if err != nil {
		return setup.Explain(err, restConfig)
	}

	record, closing, err := recorder(o, p.Name(), mgr.GetClient())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closing()) }()

	// Whether the ordinal is one of the replicas must not decide whether the Pod is ready: the StatefulSet would wait with the next Pod.
	// Sharing: follow the number of replicas.
	err = errors.Join(mgr.AddHealthzCheck("ping", healthz.Ping), mgr.AddReadyzCheck("ping", healthz.Ping), mgr.Add(p))
	if err != nil {
		return fmt.Errorf("set up the manager: %w", err)
	}

	if err := addControllers(mgr, p, record); err != nil {
		return err
	}

	log.Info("Starting replica", "pod", p.Name(), "ordinal", p.Ordinal())

	if err := mgr.Start(ctx); err != nil {
		return fmt.Errorf("run the replica: %w", err)
	}

	return nil
}

// decorate adds to a reconciler what only tests need.
type decorate func(controller string, obj client.Object, inner reconcile.Reconciler) reconcile.Reconciler

// addControllers adds the two controllers.
func addControllers(mgr ctrl.Manager, p *ordinal.Process, record decorate) error {
	c := mgr.GetClient()
	websites := record("website", &v1alpha1.Website{}, &website.Reconciler{Client: c})

	err := ctrl.NewControllerManagedBy(mgr).Named("website").
		// Sharing: pass only events of this Pod's objects.
		For(&v1alpha1.Website{}, builder.WithPredicates(p.Predicate(predicate.GenerationChangedPredicate{}))).
		Owns(&corev1.ConfigMap{}).
		// Sharing: enqueue what this Pod gains when the number of replicas changes.
		WatchesRawSource(p.Source(mgr.GetCache(), &v1alpha1.Website{})).
		// Sharing: work only on this Pod's objects.
		Complete(p.Reconciler(c, &v1alpha1.Website{}, websites))
	if err != nil {
		return fmt.Errorf("set up the controller of Websites: %w", err)
	}

	checksums := record("checksum", &corev1.ConfigMap{}, &checksum.Reconciler{Client: c})

	err = ctrl.NewControllerManagedBy(mgr).Named("checksum").
		For(&corev1.ConfigMap{}, builder.WithPredicates(p.Predicate())).
		WatchesRawSource(p.Source(mgr.GetCache(), &corev1.ConfigMap{})).
		Complete(p.Reconciler(c, &corev1.ConfigMap{}, checksums))
	if err != nil {
		return fmt.Errorf("set up the controller of checksums: %w", err)
	}

	return nil
}

// recorder returns what records reconciles, if the options ask for it, and makes them longer.
func recorder(o options, name string, c client.Client) (record decorate, closing func() error, err error) {
	delayed := func(_ string, _ client.Object, inner reconcile.Reconciler) reconcile.Reconciler {
		return history.Delay(clock.RealClock{}, o.WorkDuration, inner)
	}

	if o.HistoryFile == "" {
		return delayed, func() error { return nil }, nil
	}

	file, err := history.Open(o.HistoryFile)
	if err != nil {
		return nil, nil, fmt.Errorf("--history-file: %w", err)
	}

	writer := history.NewRecorder(file, os.Getpid(), func() string { return name }, history.Now)

	return func(controller string, obj client.Object, inner reconcile.Reconciler) reconcile.Reconciler {
		return writer.Reconciler(history.Subject{Controller: controller, Object: obj, Reader: c}, delayed(controller, obj, inner))
	}, file.Close, nil
}
