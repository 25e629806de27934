package cluster

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/clusterring/clusterring/tools/lab/localplane/metrics"
)

// metricsPort is where every program of the project serves /metrics.
const metricsPort = "8080"

// Metric reads a metric of a pod through the API server's proxy, and returns the sum over the series that have all the given labels,
// each written as name="value". Without any series it returns 0.
func (c *Cluster) Metric(ctx context.Context, pod corev1.Pod, name string, labels ...string) (float64, error) {
	text, err := c.Clients.CoreV1().Pods(pod.Namespace).ProxyGet("http", pod.Name, metricsPort, "metrics", nil).DoRaw(ctx)
	if err != nil {
		return 0, fmt.Errorf("read the metrics of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}

	return metrics.Sum(string(text), name, labels...)
}

// ServerMetric reads a metric of the API server, as [Cluster.Metric] does one of a pod.
func (c *Cluster) ServerMetric(ctx context.Context, name string, labels ...string) (float64, error) {
	text, err := c.Clients.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return 0, fmt.Errorf("read the metrics of the API server: %w", err)
	}

	return metrics.Sum(string(text), name, labels...)
}
