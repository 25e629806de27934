package pods

import (
	"context"
	"regexp"
	"strconv"

	"github.com/clusterring/clusterring/tools/e2e/cluster"
	"github.com/clusterring/clusterring/tools/lab/must"
	"github.com/clusterring/clusterring/tools/testkit/metrics"
)

// series are what the kubelet reports of its node, whose id is /: its CPU time; and of Pods, beside that of their
// containers: how long their limit has kept them from CPUs. The last numbers are the seconds, and the time in
// milliseconds.
var series = regexp.MustCompile(`(?m)^container_cpu_(?:usage_seconds_total\{.*id="/",|` +
	`cfs_throttled_seconds_total\{container="",).*pod="([^"]*)"\} (\S+) (\d+)$`)

// readings are the seconds of Pods and nodes, and their times. Those of a node are divided by the number of its cores.
type readings map[string][2]float64

// counters returns what the kubelets have read last, every few seconds. It waits until they know the limits of all
// shards.
func (f *fleet) counters(ctx context.Context) (all readings) {
	must.Until(ctx, cluster.Patience, func(ctx context.Context) {
		all = readings{}

		for i := range f.pods {
			node, pod := f.pods[i].Spec.NodeName, f.pods[i].Name
			if _, known := all[node]; !known {
				all.add(node, string(must.Get(f.Clients.CoreV1().RESTClient().Get().Resource("nodes").Name(node).
					SubResource("proxy").Suffix("metrics", "cadvisor").DoRaw(ctx))))
			}

			_, limited := all[pod]
			must.Hold(limited, "the kubelet knows of no CPU limit of Pod %s", pod)
		}
	})

	return all
}

// add adds what the kubelet of a node reports.
func (all readings) add(node, text string) {
	for _, found := range series.FindAllStringSubmatch(text, -1) {
		seconds, at := must.Get(strconv.ParseFloat(found[2], 64)), must.Get(strconv.ParseFloat(found[3], 64))
		if found[1] == "" {
			all[node] = [2]float64{seconds / must.Get(metrics.Sum(text, "machine_cpu_cores")), at}
		} else {
			all[found[1]] = [2]float64{seconds, at}
		}
	}
}

// since returns how many seconds there were in each second since earlier readings.
func (all readings) since(earlier readings) map[string]float64 {
	grown := map[string]float64{}

	for of, now := range all {
		if before, known := earlier[of]; known && now[1] > before[1] {
			grown[of] = (now[0] - before[0]) * 1000 / (now[1] - before[1]) //nolint:mnd // milliseconds
		}
	}

	return grown
}
