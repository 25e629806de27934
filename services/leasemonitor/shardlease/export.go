package shardlease

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/lease"
)

// The metrics of rings and shards have the names that kubernetes-controller-sharding gives them, so that its dashboards and alerts work. There are a
// few series per shard and ring, and none per object.
var (
	ringLabels  = []string{"clusterring", "uid"}
	shardLabels = []string{"namespace", "shard", "clusterring"}

	ringGeneration = prometheus.NewDesc("controller_sharding_clusterring_metadata_generation", "The generation of a ClusterRing.", ringLabels, nil)
	ringObserved   = prometheus.NewDesc("controller_sharding_clusterring_observed_generation",
		"The generation of a ClusterRing that the services have last observed.", ringLabels, nil)
	ringShards    = prometheus.NewDesc("controller_sharding_clusterring_status_shards", "The number of shards of a ClusterRing.", ringLabels, nil)
	ringAvailable = prometheus.NewDesc("controller_sharding_clusterring_status_available_shards",
		"The number of shards of a ClusterRing that objects are assigned to.", ringLabels, nil)
	shardInfo = prometheus.NewDesc("controller_sharding_shard_info", "Information about a shard: the uid of its Lease. The value is 1.",
		slices.Concat(shardLabels, []string{"uid"}), nil)
	shardState = prometheus.NewDesc("controller_sharding_shard_state", "The state of a shard: 1 for the present state, 0 for the others.",
		slices.Concat(shardLabels, []string{"state"}), nil)

	exported = []*prometheus.Desc{ringGeneration, ringObserved, ringShards, ringAvailable, shardInfo, shardState}
)

// states are all states of shards.
var states = []lease.State{lease.Orphaned, lease.Dead, lease.Uncertain, lease.Expired, lease.Ready}

// exportRing sends the metrics of a ring.
func exportRing(out chan<- prometheus.Metric, ring *v1alpha1.ClusterRing) {
	for desc, value := range map[*prometheus.Desc]int64{
		ringGeneration: ring.Generation, ringObserved: ring.Status.ObservedGeneration,
		ringShards: int64(ring.Status.Shards), ringAvailable: int64(ring.Status.AvailableShards),
	} {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(value), ring.Name, string(ring.UID))
	}
}

// exportShard sends the metrics of the shard with this Lease.
func exportShard(out chan<- prometheus.Metric, l *coordinationv1.Lease, state lease.State) {
	labels := []string{l.Namespace, l.Name, l.Labels[contract.LabelClusterRing]}

	out <- prometheus.MustNewConstMetric(shardInfo, prometheus.GaugeValue, 1, append(slices.Clone(labels), string(l.UID))...)

	for _, s := range states {
		value := 0.0
		if s == state {
			value = 1
		}

		out <- prometheus.MustNewConstMetric(shardState, prometheus.GaugeValue, value, append(slices.Clone(labels), string(s))...)
	}
}
