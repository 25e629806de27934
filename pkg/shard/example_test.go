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

// run is an ordinary main function. Without sharding, it calls ctrl.NewManager.
func run() error {
	config, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("find the API server: %w", err)
	}

	mgr, err := shard.NewManager(config, ctrl.Options{}, shard.Options{
		Ring:  "widgets",
		Slots: shard.Scale(), // as many shards as the Deployment has replicas
		Kinds: shard.Kinds{shard.Main(&corev1.Service{}), shard.Controlled(&corev1.ConfigMap{})},
	})
	if err != nil {
		return fmt.Errorf("set up the manager: %w", err)
	}

	err = ctrl.NewControllerManagedBy(mgr).
		For(&corev1.Service{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Owns(&corev1.ConfigMap{}).
		Complete(&widgetReconciler{mgr.GetClient()})
	if err != nil {
		return fmt.Errorf("set up the controller: %w", err)
	}

	if err := mgr.Start(ctrl.SetupSignalHandler()); err != nil {
		return fmt.Errorf("run: %w", err)
	}

	return nil
}

// This controller is one shard of a ring. It must end with a non-zero code when Start returns an error, because the
// Lease may be lost while workers are still running.
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
