package leasemonitor

import (
	"github.com/spf13/pflag"

	"github.com/clusterring/clusterring/services/internal/clusterring"
)

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
		"export metrics of each shard under the names of kubernetes-controller-sharding: whoever may create Leases in the namespaces of shards adds time series")
}
