package shardlease_test

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/leasemonitor/shardlease"
	"github.com/clusterring/clusterring/tools/lab/localplane/leasetest"
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
`)))
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
		if metric.Write(&written) == nil && written.GetLabel()[0].GetValue() == o.ring {
			out <- metric
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

	m.lookAt(3 * d)
	m.lookAt(3 * d)
	m.lookAt(time.Hour)

	for _, name := range []string{"clusterring_shard_takeovers_total", "clusterring_shard_collections_total"} {
		require.GreaterOrEqual(t, counter(t, name, "unknown"), 1.0)
	}

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
