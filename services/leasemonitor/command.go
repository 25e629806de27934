// Package leasemonitor is the service that detects failed shards.
//
// It reads ClusterRings and the Leases that carry a ring's label, and decides with package lease. It writes the state
// of each Lease on it, takes over the Lease of a shard that has stopped renewing, deletes a Lease that nobody holds any
// more, and reports in each ring's status how many shards it has. It tells the admission policies what they must know
// of rings. Only one replica writes at a time. The others watch, so that they know the age of every Lease when they
// take over.
package leasemonitor

import (
	"context"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/clusterring/clusterring/services/internal/clusterring"
	"github.com/clusterring/clusterring/services/internal/kit"
	"github.com/clusterring/clusterring/services/leasemonitor/pods"
	"github.com/clusterring/clusterring/services/leasemonitor/shardlease"
)

// name is that of the binary, of the leader Lease and of the field manager.
const name = "leasemonitor"

func init() {
	metrics.Registry.MustRegister(shardlease.Collectors()...)
	metrics.Registry.MustRegister(pods.Collectors()...)
}

// NewCommand returns the command of the service.
func NewCommand() *cobra.Command {
	o := &options{}

	return kit.NewCommand(kit.Service{
		Name:           name,
		Short:          "Monitors the Leases of shards: is each shard alive?",
		Long:           long,
		Example:        example,
		LeaderElection: true,
		AddFlags:       o.addFlags,
		Setup:          func(ctx context.Context, rt *kit.Runtime) error { return setup(ctx, rt, o) },
	})
}

// options are the values of the service's own flags.
type options struct {
	pods         bool
	shardMetrics bool
	// sharder is whose rings the service monitors. No flag sets it.
	sharder clusterring.Identity
}

func (o *options) addFlags(flags *pflag.FlagSet) {
	flags.BoolVar(&o.pods, "pods", o.pods,
		"give up a shard as soon as the kubelet reports that its Pod has ended, in the namespaces that rings name in spec.shardNamespaces; "+
			"this needs the permission to list and watch Pods there (ClusterRole clusterring:leasemonitor-pods)")
	flags.BoolVar(&o.shardMetrics, "shard-metrics", o.shardMetrics,
		"export metrics of each shard under the names of kubernetes-controller-sharding: everyone who may create Leases in the namespaces of shards adds time series")
}

const long = `leasemonitor monitors the Leases of shards: is each shard alive?

It measures how long each Lease with the label alpha.sharding.timebertt.dev/clusterring=<ring> has not been renewed. It uses
its own clock, counts from when it saw the Lease change, and does not count the time in which no Lease could be written.
It writes the shard's state into the label alpha.sharding.timebertt.dev/state. D is the Lease's leaseDurationSeconds:

  ready      held by the shard, renewed less than D ago
  expired    held by the shard, renewed D to 2D ago
  uncertain  held by the shard, renewed more than 2D ago:  the Lease is taken over
  dead       not held by the shard: released, or taken over; its objects go to other shards
  orphaned   dead, and expired for a minute:               the Lease is deleted

With --pods, it takes over the Lease of a shard as soon as the kubelet reports that the shard's Pod has ended, whatever the age of
the Lease. It does not believe that a Pod has ended which was deleted by force, or whose node is not ready.

If more than half of a ring's shards fall silent at the same time, it emits an event and waits for another D. While the ring's
status (lostShards) reports that objects of a dead shard are still being moved, it keeps the Lease from the shard.

A Lease whose ring does not exist gets no state, and is deleted when it has not been renewed for a minute and four times D.

It also writes the numbers of shards and the conditions ShardsAvailable and Ready into the status of each ClusterRing. Both
are False while the Lease of a shard that has stopped renewing cannot be taken over. It writes
PolicyParameters, which tell the admission policies about Leases of shards and about fences what they must know of rings.

Any number of replicas may run. One of them writes. The others also watch, so that a failed shard is detected in time while
the writing replica is replaced.`

const example = `  # in a cluster, with the permissions of its service account
  leasemonitor

  # on your machine, next to other services: every port is a flag
  leasemonitor --kubeconfig ~/.kube/config --log-format text --metrics-bind-address :9080 --health-probe-bind-address :9081

  # the state of your shards
  kubectl get leases -A -L alpha.sharding.timebertt.dev/clusterring,alpha.sharding.timebertt.dev/state
  kubectl get clusterrings`
