// Package rebalancer is the service that keeps every object at the shard to which it belongs.
//
// It reads Leases, ClusterRings, namespaces and the metadata of sharded objects. It decides which objects have no
// shard, are at a lost shard, or are at another shard than the ring assigns them to. It writes their shard and drain
// labels, and the condition Assigned of each ring. One replica works. The others stand by.
package rebalancer

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/services/internal/kit"
)

// name is the name of the binary, of the leader Lease and of the field manager.
const name = "rebalancer"

// NewCommand returns the command of the service.
func NewCommand() *cobra.Command {
	o := newOptions()

	return kit.NewCommand(kit.Service{
		Name:           name,
		Short:          "Keeps every object at the shard to which it belongs",
		Long:           long,
		Example:        example,
		LeaderElection: true,
		AddFlags:       o.addFlags,
		Validate:       o.validate,
		Setup:          func(ctx context.Context, rt *kit.Runtime) error { return setup(ctx, rt, o) },
	})
}

const long = `rebalancer keeps every object of every ClusterRing at the shard to which the ring assigns it.

It labels objects that admission has missed, and objects of lost shards. When shards join, it asks the present shards to release
the objects that now belong to the new ones: it adds the drain label and waits for the acknowledgement. It never takes an object
from a live shard. Objects that are controlled by other objects follow their owners.

Objects in their places cost almost nothing: it watches only the objects without an available shard and the objects that are being
drained. It visits all labeled objects after the shards or the ring have changed, and otherwise from time to time (--audit-budget).
An object that it finds out of place stays an obligation until it was seen in its place.

It writes the condition Assigned and status.assignment of every ring. It needs permissions on each ring's resources (get, list,
watch, patch), from a ClusterRole with the label ` + contract.LabelAggregateToRebalancer + `: "true".

Any number of replicas may run. One of them works. The others stand by.`

const example = `  # in a cluster, with the permissions of its service account
  rebalancer

  # on your machine, next to other services: every port is a flag
  rebalancer --kubeconfig ~/.kube/config --leader-elect=false --log-format text \
    --metrics-bind-address 127.0.0.1:8083 --health-probe-bind-address 127.0.0.1:8084`
