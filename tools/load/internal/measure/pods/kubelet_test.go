package pods

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// As kubelets report it: some know also the containers of a Pod.
const (
	earlier = `# TYPE container_cpu_usage_seconds_total counter
container_cpu_usage_seconds_total{container="",cpu="total",id="/",name="",namespace="",pod=""} 100 10000
container_cpu_usage_seconds_total{container="",cpu="total",id="/pods",name="",namespace="",pod=""} 5 10000
container_cpu_usage_seconds_total{container="",cpu="total",id="/pods/a",name="",namespace="n",pod="a"} 2 10500
container_cpu_cfs_throttled_seconds_total{container="",id="/pods/a",name="",namespace="n",pod="a"} 7 10500
container_cpu_cfs_throttled_seconds_total{container="c",id="/pods/a/c",name="x",namespace="n",pod="a"} 6 10700
container_cpu_cfs_throttled_seconds_total{container="",id="/pods/b",name="",namespace="n",pod="b"} 3 9000
machine_cpu_cores{machine_id="x"} 2
`
	later = `container_cpu_usage_seconds_total{container="",cpu="total",id="/",name="",namespace="",pod=""} 120 30000
container_cpu_cfs_throttled_seconds_total{container="",id="/pods/a",name="",namespace="n",pod="a"} 12 35500
container_cpu_cfs_throttled_seconds_total{container="",id="/pods/b",name="",namespace="n",pod="b"} 3 9000
container_cpu_cfs_throttled_seconds_total{container="",id="/pods/c",name="",namespace="n",pod="c"} 3 9000
machine_cpu_cores{machine_id="x"} 2
`
)

func TestReadings(t *testing.T) {
	before, after := readings{}, readings{}
	before.add("node", earlier)
	after.add("node", later)

	require.Equal(t, readings{"node": {50, 10000}, "a": {7, 10500}, "b": {3, 9000}}, before)
	require.Equal(t, map[string]float64{"node": 0.5, "a": 0.2}, after.since(before),
		"neither what was not read again, nor what was not read before")
}
