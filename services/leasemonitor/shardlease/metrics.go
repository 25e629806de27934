package shardlease

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/lease"
)

// unknown stands for every ring that does not exist, so that everyone who creates Leases cannot make up values of a
// label.
const unknown = "unknown"

var (
	takeovers = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "clusterring_shard_takeovers_total",
		Help: "Leases taken over from shards that stopped renewing them, or whose Pods have ended, by ring.",
	}, []string{"ring"})
	collections = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "clusterring_shard_collections_total",
		Help: "Leases deleted because no shard had held them for long, by ring. The ring is \"unknown\" if no ring has that name.",
	}, []string{"ring"})
	shardsDesc = prometheus.NewDesc("clusterring_shards",
		"Leases of shards, by ring and state. The ring is \"unknown\" if no ring has that name. "+
			"Reported by the replica that leads.",
		[]string{"ring", "state"}, nil)
)

// Collectors returns the metrics of the package for the registry of the service. [Census] registers its own while it
// counts.
func Collectors() []prometheus.Collector { return []prometheus.Collector{takeovers, collections} }

// scrapeTimeout bounds reading the cache for one scrape.
const scrapeTimeout = 5 * time.Second

// Census counts the shards by ring and state whenever metrics are read. Add it to a manager: it counts only in the
// replica that leads, so that sums over replicas are correct. All fields are required, except EachShard.
type Census struct {
	// Leases reads Leases of shards, and ClusterRings, from a cache.
	Leases client.Reader
	// Clock and Ages are those of the Reconciler.
	Clock clock.PassiveClock
	Ages  *lease.Observer
	// EachShard also exports metrics of each shard. Their number is then what the writers of Leases make it.
	EachShard bool
}

// Start implements manager.Runnable: it counts until ctx ends.
func (c *Census) Start(ctx context.Context) error {
	err := metrics.Registry.Register(c)
	if _, counted := errors.AsType[prometheus.AlreadyRegisteredError](err); counted {
		<-ctx.Done() // another one counts in this process, which happens only where a process is several shards
		return nil
	}

	if err != nil {
		return fmt.Errorf("register the metric of shards: %w", err)
	}

	defer metrics.Registry.Unregister(c)

	<-ctx.Done()

	return nil
}

// Describe implements prometheus.Collector.
func (*Census) Describe(descs chan<- *prometheus.Desc) {
	descs <- shardsDesc

	for _, d := range exported {
		descs <- d
	}
}

// Collect implements prometheus.Collector.
func (c *Census) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()

	leases := &coordinationv1.LeaseList{}
	if err := c.Leases.List(ctx, leases, client.UnsafeDisableDeepCopy); err != nil {
		out <- prometheus.NewInvalidMetric(shardsDesc, fmt.Errorf("list Leases: %w", err))
		return
	}

	rings := &v1alpha1.ClusterRingList{}
	if err := c.Leases.List(ctx, rings, client.UnsafeDisableDeepCopy); err != nil {
		out <- prometheus.NewInvalidMetric(shardsDesc, fmt.Errorf("list ClusterRings: %w", err))
		return
	}

	known := map[string]*v1alpha1.ClusterRing{}

	for i := range rings.Items {
		ring := &rings.Items[i]
		known[ring.Name] = ring
		exportRing(out, ring)
	}

	type group struct {
		ring  string
		state lease.State
	}

	counts := map[group]float64{}

	for i := range leases.Items {
		l := &leases.Items[i]
		snapshot, seen := look(c.Ages, l, c.Clock.Now())
		name, state := unknown, lease.Next(snapshot, seen.Age).State

		if ring := known[l.Labels[contract.LabelClusterRing]]; ring != nil {
			name = ring.Name

			if c.EachShard && ring.Spec.CountsShardsIn(l.Namespace) {
				exportShard(out, l, state)
			}
		}

		counts[group{name, state}]++
	}

	for g, n := range counts {
		out <- prometheus.MustNewConstMetric(shardsDesc, prometheus.GaugeValue, n, g.ring, string(g.state))
	}
}

// The metrics of rings and shards have the names that kubernetes-controller-sharding gives them, so that its dashboards
// and alerts work. There are a few series per shard and ring, and none per object.
var (
	ringLabels  = []string{"clusterring", "uid"}
	shardLabels = []string{"namespace", "shard", "clusterring"}

	ringGeneration = prometheus.NewDesc("controller_sharding_clusterring_metadata_generation",
		"The generation of a ClusterRing.", ringLabels, nil)
	ringObserved = prometheus.NewDesc("controller_sharding_clusterring_observed_generation",
		"The generation of a ClusterRing that the services have last observed.", ringLabels, nil)
	ringShards = prometheus.NewDesc("controller_sharding_clusterring_status_shards",
		"The number of shards of a ClusterRing.", ringLabels, nil)
	ringAvailable = prometheus.NewDesc("controller_sharding_clusterring_status_available_shards",
		"The number of shards of a ClusterRing that objects are assigned to.", ringLabels, nil)
	shardInfo = prometheus.NewDesc("controller_sharding_shard_info",
		"Information about a shard: the uid of its Lease. The value is 1.",
		slices.Concat(shardLabels, []string{"uid"}), nil)
	shardState = prometheus.NewDesc("controller_sharding_shard_state",
		"The state of a shard: 1 for the present state, 0 for the others.",
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

	out <- prometheus.MustNewConstMetric(shardInfo, prometheus.GaugeValue, 1,
		append(slices.Clone(labels), string(l.UID))...)

	for _, s := range states {
		value := 0.0
		if s == state {
			value = 1
		}

		out <- prometheus.MustNewConstMetric(shardState, prometheus.GaugeValue, value,
			append(slices.Clone(labels), string(s))...)
	}
}
