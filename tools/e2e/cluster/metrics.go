package cluster

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/clusterring/clusterring/tools/testkit/metrics"
)

// metricsPort is the port on which every program of the project serves /metrics.
const metricsPort = "8080"

// Metric reads a metric of a pod through the proxy of the API server. It returns the sum over the series that have all the given labels,
// each written as name="value", and 0 without any series.
func (c *Cluster) Metric(ctx context.Context, pod corev1.Pod, name string, labels ...string) (float64, error) {
	text, err := c.Clients.CoreV1().Pods(pod.Namespace).ProxyGet("http", pod.Name, metricsPort, "metrics", nil).DoRaw(ctx)
	if err != nil {
		return 0, fmt.Errorf("read the metrics of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}

	return metrics.Sum(string(text), name, labels...)
}

// ServerMetric is [Cluster.Metric] for a metric of the API server.
func (c *Cluster) ServerMetric(ctx context.Context, name string, labels ...string) (float64, error) {
	text, err := c.Clients.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return 0, fmt.Errorf("read the metrics of the API server: %w", err)
	}

	return metrics.Sum(string(text), name, labels...)
}
