package shardlease_test

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/leasemonitor/shardlease"
	"github.com/clusterring/clusterring/tools/testkit/leasetest"
)

func TestCensusCountsByRingAndState(t *testing.T) {
	m := newMonitor(t)
	ring := "census" + m.shard.Namespace
	m.exists(ring)

	for _, name := range []string{"old", "new", "newer"} {
		if name == "new" {
			m.pass(d)
		}

		m.shard = &leasetest.Shard{Client: m.admin, Ring: ring, Namespace: m.shard.Namespace, Name: name, Duration: d}
		require.NoError(t, m.shard.Acquire(t.Context()))
		m.look()
	}
	m.pass(d + time.Second)

	census := &shardlease.Census{Leases: m.Client, Clock: m.clock, Ages: m.Ages}
	require.NoError(t, testutil.CollectAndCompare(ofRing{census, ring}, strings.NewReader(`
# HELP clusterring_shards Leases of shards, by ring and state. The ring is "unknown" if no ring has that name. Reported by the replica that leads.
# TYPE clusterring_shards gauge
clusterring_shards{ring="`+ring+`",state="expired"} 1
clusterring_shards{ring="`+ring+`",state="ready"} 2
`), "clusterring_shards"))
}

// Those who come from the prior art have dashboards with its metrics.
func TestMetricsOfThePriorArtAreExported(t *testing.T) {
	m := newMonitor(t)
	ring := "exported" + m.shard.Namespace
	m.exists(ring)
	m.shard.Ring = ring
	require.NoError(t, m.shard.Acquire(t.Context()))
	m.look()

	of := &v1alpha1.ClusterRing{}
	require.NoError(t, m.admin.Get(t.Context(), client.ObjectKey{Name: ring}, of))
	of.Status.Shards, of.Status.AvailableShards, of.Status.ObservedGeneration = 3, 2, 1
	require.NoError(t, m.admin.Status().Update(t.Context(), of))
	require.Eventually(t, func() bool {
		cached := &v1alpha1.ClusterRing{}
		return m.Client.Get(t.Context(), client.ObjectKey{Name: ring}, cached) == nil && cached.Status.Shards == 3
	}, 30*time.Second, 10*time.Millisecond)

	leases := &coordinationv1.LeaseList{}
	require.NoError(t, m.admin.List(t.Context(), leases, client.InNamespace(m.shard.Namespace), client.MatchingLabels{contract.LabelClusterRing: ring}))
	require.Len(t, leases.Items, 1)

	census := &shardlease.Census{Leases: m.Client, Clock: m.clock, Ages: m.Ages, EachShard: true}
	ofThisRing := `{clusterring="` + ring + `",uid="` + string(of.UID) + `"} `
	ofThisShard := `clusterring="` + ring + `",namespace="` + m.shard.Namespace + `",shard="` + m.shard.Name + `",`
	require.NoError(t, testutil.CollectAndCompare(ofRing{census, ring}, strings.NewReader(`
# HELP controller_sharding_clusterring_metadata_generation The generation of a ClusterRing.
# TYPE controller_sharding_clusterring_metadata_generation gauge
controller_sharding_clusterring_metadata_generation`+ofThisRing+`1
# HELP controller_sharding_clusterring_observed_generation The generation of a ClusterRing that the services have last observed.
# TYPE controller_sharding_clusterring_observed_generation gauge
controller_sharding_clusterring_observed_generation`+ofThisRing+`1
# HELP controller_sharding_clusterring_status_available_shards The number of shards of a ClusterRing that objects are assigned to.
# TYPE controller_sharding_clusterring_status_available_shards gauge
controller_sharding_clusterring_status_available_shards`+ofThisRing+`2
# HELP controller_sharding_clusterring_status_shards The number of shards of a ClusterRing.
# TYPE controller_sharding_clusterring_status_shards gauge
controller_sharding_clusterring_status_shards`+ofThisRing+`3
# HELP controller_sharding_shard_info Information about a shard: the uid of its Lease. The value is 1.
# TYPE controller_sharding_shard_info gauge
controller_sharding_shard_info{`+ofThisShard+`uid="`+string(leases.Items[0].UID)+`"} 1
# HELP controller_sharding_shard_state The state of a shard: 1 for the present state, 0 for the others.
# TYPE controller_sharding_shard_state gauge
controller_sharding_shard_state{`+ofThisShard+`state="dead"} 0
controller_sharding_shard_state{`+ofThisShard+`state="expired"} 0
controller_sharding_shard_state{`+ofThisShard+`state="orphaned"} 0
controller_sharding_shard_state{`+ofThisShard+`state="ready"} 1
controller_sharding_shard_state{`+ofThisShard+`state="uncertain"} 0
# HELP clusterring_shards Leases of shards, by ring and state. The ring is "unknown" if no ring has that name. Reported by the replica that leads.
# TYPE clusterring_shards gauge
clusterring_shards{ring="`+ring+`",state="ready"} 1
`)))

	// By default, whoever creates Leases adds no series.
	byDefault := &shardlease.Census{Leases: m.Client, Clock: m.clock, Ages: m.Ages}
	require.Zero(t, testutil.CollectAndCount(ofRing{byDefault, ring}, "controller_sharding_shard_info", "controller_sharding_shard_state"))

	// A Lease that does not count is no shard.
	patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"shardNamespaces":["elsewhere"]}}`))
	require.NoError(t, m.admin.Patch(t.Context(), of, patch))
	require.Eventually(t, func() bool {
		return testutil.CollectAndCount(ofRing{census, ring}, "controller_sharding_shard_info", "controller_sharding_shard_state") == 0
	}, 30*time.Second, 10*time.Millisecond)
}

// ofRing leaves out the metrics of other tests' rings.
type ofRing struct {
	prometheus.Collector

	ring string
}

func (o ofRing) Collect(out chan<- prometheus.Metric) {
	all := make(chan prometheus.Metric, 1000)
	o.Collector.Collect(all)
	close(all)

	for metric := range all {
		var written dto.Metric
		if metric.Write(&written) != nil {
			continue
		}

		for _, label := range written.GetLabel() {
			if (label.GetName() == "ring" || label.GetName() == "clusterring") && label.GetValue() == o.ring {
				out <- metric
			}
		}
	}
}

func TestTakeOversAndCollectionsAreCounted(t *testing.T) {
	m := newMonitor(t)
	m.shard.Ring = "counted" + m.shard.Namespace
	m.exists(m.shard.Ring)
	require.NoError(t, m.shard.Acquire(t.Context()))
	m.look()
	m.lookAt(3 * d)
	m.lookAt(3 * d)
	m.lookAt(time.Hour)

	for _, name := range []string{"clusterring_shard_takeovers_total", "clusterring_shard_collections_total"} {
		require.InDelta(t, 1, counter(t, name, m.shard.Ring), 0, name)
	}
}

// exists creates a ring.
func (m *monitor) exists(ring string) {
	m.t.Helper()
	require.NoError(m.t, m.admin.Create(m.t.Context(), &v1alpha1.ClusterRing{
		ObjectMeta: metav1.ObjectMeta{Name: ring},
		Spec:       v1alpha1.ClusterRingSpec{Resources: []v1alpha1.RingResource{{Group: "example.org", Resource: "widgets"}}},
	}))
}

// Whoever creates Leases of rings that do not exist adds no series.
func TestRingsThatAreMadeUpAreOneInMetrics(t *testing.T) {
	m := newMonitor(t)
	m.shard.Ring = "made-up-" + m.shard.Namespace
	require.NoError(t, m.shard.Acquire(t.Context()))
	m.look()

	census := &shardlease.Census{Leases: m.Client, Clock: m.clock, Ages: m.Ages}
	require.NotZero(t, testutil.CollectAndCount(ofRing{census, "unknown"}))
	require.Zero(t, testutil.CollectAndCount(ofRing{census, m.shard.Ring}))

	m.pass(time.Hour)
	m.sweep()
	require.GreaterOrEqual(t, counter(t, "clusterring_shard_collections_total", "unknown"), 1.0)

	families, err := metrics.Registry.Gather()
	require.NoError(t, err)

	for _, f := range families {
		require.NotContains(t, f.String(), m.shard.Ring)
	}
}

func init() { metrics.Registry.MustRegister(shardlease.Collectors()...) }

// counter returns the value of a counter of a ring, in the registry that /metrics serves.
func counter(t *testing.T, name, ring string) float64 {
	t.Helper()

	families, err := metrics.Registry.Gather()
	require.NoError(t, err)

	for _, f := range families {
		for _, metric := range f.GetMetric() {
			for _, label := range metric.GetLabel() {
				if f.GetName() == name && label.GetName() == "ring" && label.GetValue() == ring {
					return metric.GetCounter().GetValue()
				}
			}
		}
	}

	t.Fatalf("no metric %s of ring %s", name, ring)

	return 0
}
