// Package leasemonitor is the service that knows whether each shard is alive.
//
// It reads the Leases that carry a ring's label and ClusterRings; decides by package lease; and writes the state of each
// Lease on it, takes over the Lease of a shard that stopped renewing, deletes one that nobody holds any more, and says in
// each ring's status how many shards it has. One replica at a time writes; the others watch, so that they know the age
// of every Lease when it is their turn.
package leasemonitor

import (
	"github.com/spf13/cobra"

	"github.com/clusterring/clusterring/services/internal/kit"
)

// name is that of the binary, of the leader Lease and of the field manager.
const name = "leasemonitor"

// NewCommand returns the command of the service.
func NewCommand() *cobra.Command {
	return kit.NewCommand(kit.Service{
		Name:           name,
		Short:          "Watches over the Leases of shards: is each shard alive?",
		Long:           long,
		Example:        example,
		LeaderElection: true,
		Setup:          setup,
	})
}

const long = `leasemonitor watches over the Leases of shards: is each shard alive?

It looks at every Lease with the label alpha.sharding.timebertt.dev/clusterring=<ring>, measures how long it has not been
renewed (by its own clock, since it saw the Lease change, and without the time in which it could not see the API server), and
writes the shard's state into the label
alpha.sharding.timebertt.dev/state. D is the Lease's leaseDurationSeconds:

  ready      held by the shard, renewed less than D ago
  expired    held by the shard, renewed D to 2D ago
  uncertain  held by the shard, renewed more than 2D ago:  the Lease is taken over
  dead       not held by the shard: released, or taken over; its objects go to other shards
  orphaned   dead, and expired for a minute:               the Lease is deleted

When more than half of a ring's shards fall silent at once, it says so in an event and waits for another D. It keeps the
Lease of a dead shard from it while the ring's status (lostShards) says that its objects are still being moved.

It also writes the numbers of shards and the conditions ShardsAvailable and Ready into the status of each ClusterRing. Both
are False while the Lease of a shard that stopped renewing cannot be taken over.

Any number of replicas may run. One of them writes; the others keep watch, so that a failed shard is noticed in time
while the writing replica is replaced.`

const example = `  # in a cluster, with the rights of its service account
  leasemonitor

  # on your machine, next to other services: every port is a flag
  leasemonitor --kubeconfig ~/.kube/config --log-format text --metrics-bind-address :9080 --health-probe-bind-address :9081

  # what it thinks of your shards
  kubectl get leases -A -L alpha.sharding.timebertt.dev/clusterring,alpha.sharding.timebertt.dev/state
  kubectl get clusterrings`
