package shard_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/shard"
	"github.com/clusterring/clusterring/pkg/shard/shardtest"
)

// widgetReconciler is an ordinary reconciler without any sharding.
type widgetReconciler struct{ client.Client }

func (r *widgetReconciler) Reconcile(context.Context, reconcile.Request) (reconcile.Result, error) {
	return reconcile.Result{}, nil
}

// run is an ordinary main function. Comments mark what sharding adds.
func run() error {
	config, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("find the API server: %w", err)
	}

	// Name the ring. In a Pod, the name and the namespace of the shard are known.
	s, err := shard.New(shard.Options{Ring: "widgets"})
	if err != nil {
		return fmt.Errorf("set up the shard: %w", err)
	}

	// Hold the shard's Lease. Watch only the shard's Services, and the ConfigMaps that belong to them.
	options := ctrl.Options{}
	if err := s.ConfigureManager(config, &options, &corev1.Service{}, &corev1.ConfigMap{}); err != nil {
		return fmt.Errorf("set up the shard: %w", err)
	}

	mgr, err := ctrl.NewManager(config, options)
	if err != nil {
		return fmt.Errorf("set up the manager: %w", err)
	}

	// Optional: do not write after the Lease is lost, or to an object that has moved.
	c := s.CheckWrites(mgr.GetClient())

	err = ctrl.NewControllerManagedBy(mgr).
		// Let drains through: they are changes of labels.
		For(&corev1.Service{}, builder.WithPredicates(s.Predicate(predicate.GenerationChangedPredicate{}))).
		Owns(&corev1.ConfigMap{}).
		// Work only on the shard's objects, and release them when asked.
		Complete(s.Reconciler(c, &corev1.Service{}, &widgetReconciler{c}))
	if err != nil {
		return fmt.Errorf("set up the controller: %w", err)
	}

	if err := mgr.Start(ctrl.SetupSignalHandler()); err != nil {
		return fmt.Errorf("run: %w", err)
	}

	return nil
}

// This controller is one shard of a ring. It must end with a non-zero code when Start returns an error, because the Lease may be
// lost while workers are still running.
func Example() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// This is a test of a sharded reconciler.
func ExampleShard_Reconciler() {
	_ = func(t *testing.T, c client.Client, service *corev1.Service) {
		t.Helper()
		ring := shardtest.New(t, c, "widgets")
		reconciler := ring.Shard("shard-0").Reconciler(c, &corev1.Service{}, &widgetReconciler{c})
		request := reconcile.Request{NamespacedName: client.ObjectKeyFromObject(service)}

		ring.Assign(service, "shard-0")
		ring.Drain(service)

		if _, err := reconciler.Reconcile(t.Context(), request); err != nil {
			t.Fatal(err)
		}
		ring.RequireReleased(service)
	}
}
