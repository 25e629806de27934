// Command jobset is the controller manager of JobSet as a shard. JobSet itself is unchanged: it knows nothing of
// shards.
package main

import (
	"context"
	"fmt"
	"os"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/jobset/api/jobset/v1alpha2"
	"sigs.k8s.io/jobset/pkg/controllers"

	"github.com/clusterring/clusterring/pkg/shard"
	"github.com/clusterring/clusterring/tools/operators/internal/operator"
)

func main() { os.Exit(operator.Main(run)) }

func run(ctx context.Context, config *rest.Config, o *operator.Operator) error {
	if err := v1alpha2.AddToScheme(o.Scheme); err != nil {
		return fmt.Errorf("add the types of JobSet: %w", err)
	}

	// This shards it. Its main function calls ctrl.NewManager instead.
	o.Shard.Kinds = shard.Kinds{shard.Main(&v1alpha2.JobSet{}), shard.Controlled(&batchv1.Job{}),
		shard.Controlled(&corev1.Service{})}
	// it follows Pods, which the ring does not assign
	o.Shard.Controllers = map[string]shard.Placement{"pod": shard.OneReplica()}

	sharded, err := shard.NewManager(config, o.ManagerOptions("6d4f6a47.jobset.x-k8s.io"), o.Shard)
	if err != nil {
		return fmt.Errorf("create the manager: %w", err)
	}

	mgr, err := o.Recorded(sharded, "jobset", &v1alpha2.JobSet{})
	if err != nil {
		return err
	}

	// From here on, this is what its main function does.
	if err := controllers.SetupJobSetIndexes(ctx, mgr.GetFieldIndexer()); err != nil {
		return fmt.Errorf("index Jobs: %w", err)
	}

	if err := controllers.SetupPodIndexes(ctx, mgr.GetFieldIndexer()); err != nil {
		return fmt.Errorf("index Pods: %w", err)
	}

	//nolint:staticcheck // JobSet takes this recorder
	if err := controllers.NewJobSetReconciler(mgr.GetClient(), mgr.GetScheme(),
		mgr.GetEventRecorderFor("jobset")).SetupWithManager(mgr); err != nil {
		return fmt.Errorf("set up the controller of JobSets: %w", err)
	}

	//nolint:staticcheck // JobSet takes this recorder
	if err := controllers.NewPodReconciler(mgr.GetClient(), mgr.GetScheme(),
		mgr.GetEventRecorderFor("pod")).SetupWithManager(mgr); err != nil {
		return fmt.Errorf("set up the controller of Pods: %w", err)
	}

	if err := mgr.Start(ctx); err != nil {
		return fmt.Errorf("run the manager: %w", err)
	}

	return nil
}
