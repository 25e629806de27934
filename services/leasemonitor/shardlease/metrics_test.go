package shardlease_test

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/clusterring/clusterring/services/leasemonitor/shardlease"
	"github.com/clusterring/clusterring/tools/lab/localplane/leasetest"
)

func TestCensusCountsByRingAndState(t *testing.T) {
	m := newMonitor(t)
	ring := "census" + m.shard.Namespace

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
# HELP clusterring_shards Leases of shards, by ring and state. Reported by the replica that leads.
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
	require.NoError(t, m.shard.Acquire(t.Context()))
	m.look()
	m.lookAt(3 * d)
	m.lookAt(3 * d)
	m.lookAt(time.Hour)

	for _, name := range []string{"clusterring_shard_takeovers_total", "clusterring_shard_collections_total"} {
		require.InDelta(t, 1, counter(t, name, m.shard.Ring), 0, name)
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
