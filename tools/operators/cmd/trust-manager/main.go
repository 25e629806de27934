// Command trust-manager is the controller of trust-manager as a shard. trust-manager itself is unchanged. Its
// reconciler is not exported, and it has a cache of its own for what it creates.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/cert-manager/trust-manager/pkg/apis/trust/v1alpha1"
	"github.com/cert-manager/trust-manager/pkg/bundle"
	"github.com/cert-manager/trust-manager/pkg/bundle/controller"
	"k8s.io/client-go/rest"

	"github.com/clusterring/clusterring/pkg/shard"
	"github.com/clusterring/clusterring/tools/operators/internal/operator"
)

func main() { os.Exit(operator.Main(run)) }

func run(ctx context.Context, config *rest.Config, o *operator.Operator) error {
	if err := v1alpha1.AddToScheme(o.Scheme); err != nil {
		return fmt.Errorf("add the types of trust-manager: %w", err)
	}

	of := controller.Options{Namespace: o.Shard.Namespace}
	options := o.ManagerOptions("trust-manager-leader-election")
	options.Cache = bundle.CacheOpts(of)

	// This shards it. Its main function calls ctrl.NewManager instead. What a Bundle controls is not in the ring, because
	// nobody but its shard writes it.
	o.Shard.Kinds = shard.Kinds{shard.Main(&v1alpha1.Bundle{})}
	// it is built without For
	o.Shard.Controllers = map[string]shard.Placement{"bundles": shard.Sharded(&v1alpha1.Bundle{})}

	sharded, err := shard.NewManager(config, options, o.Shard)
	if err != nil {
		return fmt.Errorf("create the manager: %w", err)
	}

	mgr, err := o.Recorded(sharded, "bundles", &v1alpha1.Bundle{})
	if err != nil {
		return err
	}

	// From here on, this is what its main function does.
	if err := bundle.SetupWithManager(ctx, mgr, of); err != nil {
		return fmt.Errorf("set up the controller of Bundles: %w", err)
	}

	if err := mgr.Start(ctx); err != nil {
		return fmt.Errorf("run the manager: %w", err)
	}

	return nil
}
