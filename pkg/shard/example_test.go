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

// widgetReconciler is an ordinary reconciler; it knows nothing of shards.
type widgetReconciler struct{ client.Client }

func (r *widgetReconciler) Reconcile(context.Context, reconcile.Request) (reconcile.Result, error) {
	return reconcile.Result{}, nil
}

// run is an ordinary main. What sharding adds is commented.
func run() error {
	config, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("find the API server: %w", err)
	}

	// Who am I? In a Pod, the name and the namespace are known.
	s, err := shard.New(shard.Options{Ring: "widgets"})
	if err != nil {
		return fmt.Errorf("set up the shard: %w", err)
	}

	// Hold my Lease; watch only my Services, and the ConfigMaps that belong to them.
	options := ctrl.Options{}
	if err := s.ConfigureManager(config, &options, &corev1.Service{}, &corev1.ConfigMap{}); err != nil {
		return fmt.Errorf("set up the shard: %w", err)
	}

	mgr, err := ctrl.NewManager(config, options)
	if err != nil {
		return fmt.Errorf("set up the manager: %w", err)
	}

	// If you like: write nothing once my Lease is lost, nor to an object that has moved.
	c := s.Client(mgr.GetClient())

	err = ctrl.NewControllerManagedBy(mgr).
		// Let drains through: they are changes of labels.
		For(&corev1.Service{}, builder.WithPredicates(s.Predicate(predicate.GenerationChangedPredicate{}))).
		Owns(&corev1.ConfigMap{}).
		// Work on my objects only, and give up those that I am asked for.
		Complete(s.Reconciler(c, &corev1.Service{}, &widgetReconciler{c}))
	if err != nil {
		return fmt.Errorf("set up the controller: %w", err)
	}

	if err := mgr.Start(ctrl.SetupSignalHandler()); err != nil {
		return fmt.Errorf("run: %w", err)
	}

	return nil
}

// A controller that is one shard of a ring. It must end with a non-zero code when Start returns an error, because that may
// mean that the Lease is lost while workers are still running.
func Example() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// A test of a sharded reconciler.
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
