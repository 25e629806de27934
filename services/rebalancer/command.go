// Package rebalancer keeps every object at the shard it belongs to.
//
// It reads Leases, ClusterRings, namespaces and the metadata of sharded objects; it decides which objects are without a
// shard, at a shard that is gone or at another one than the ring gives them to; it writes their shard and drain labels, and
// for each ring the condition Assigned. One replica works, the others stand by.
package rebalancer

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/kit"
)

// name is the service's name.
const name = "rebalancer"

// NewCommand returns the command of the rebalancer.
func NewCommand() *cobra.Command {
	o := newOptions()

	return kit.NewCommand(kit.Service{
		Name:           name,
		Short:          "Is every object where it belongs?",
		Long:           long,
		Example:        example,
		LeaderElection: true,
		AddFlags:       o.addFlags,
		Validate:       o.validate,
		Setup:          func(ctx context.Context, rt *kit.Runtime) error { return setup(ctx, rt, o) },
	})
}

const long = `The rebalancer keeps every object of every ClusterRing at the shard that the ring gives it to.

It labels objects that admission has missed and objects of shards that are gone, at once and by itself. When shards join, it
asks the present shards to give up what belongs to the new ones, by the drain label, and waits for their acknowledgement: an
object of a shard that is alive is never taken from it. Objects that are controlled by others follow their owners.

Objects that are in place cost next to nothing: it watches only those without an available shard and those that are being
drained, and goes over all labelled objects after the shards or the ring have changed, and otherwise once in a while
(--audit-budget). Whatever it finds out of place it keeps until it has seen it in its place.

On every ring it maintains the condition Assigned and status.assignment. It needs rights on each ring's resources (get, list,
watch, patch), granted by a ClusterRole with the label ` + v1alpha1.LabelAggregateToRebalancer + `: "true".`

const example = `  # In a cluster, with the Pod's service account
  rebalancer

  # On a workstation, next to other services, with readable logs
  rebalancer --kubeconfig ~/.kube/config --leader-elect=false --log-format text \
    --metrics-bind-address 127.0.0.1:8083 --health-probe-bind-address 127.0.0.1:8084`
