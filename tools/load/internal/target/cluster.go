package target

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

// metricsPort is the port on which every service serves /metrics in a cluster.
const metricsPort = "8080"

// Connect connects to the cluster of a kubeconfig file, where the services must be running. It grants them permissions on the measured
// resources. Call Stop on the result, also after an error, unless it is nil.
func Connect(ctx context.Context, kubeconfig string) (*System, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("load the configuration of the cluster: %w", err)
	}

	s, err := newSystem(config)
	if err != nil {
		return nil, err
	}

	s.metrics = func(ctx context.Context, name string) ([]string, error) { return podMetrics(ctx, s.clients, name) }

	for _, name := range Services {
		if _, err := pods(ctx, s.clients, name); err != nil {
			return nil, err
		}
	}

	err = s.grant(ctx)

	return s, err
}

// podMetrics returns the metrics of each pod of a service.
func podMetrics(ctx context.Context, clients kubernetes.Interface, name string) ([]string, error) {
	running, err := pods(ctx, clients, name)
	if err != nil {
		return nil, err
	}

	var texts []string

	for _, pod := range running {
		text, err := clients.CoreV1().Pods(pod.Namespace).ProxyGet("http", pod.Name, metricsPort, "metrics", nil).DoRaw(ctx)
		if err != nil {
			return nil, fmt.Errorf("read the metrics of pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}

		texts = append(texts, string(text))
	}

	return texts, nil
}

// pods returns the running pods of a service. It returns an error if there are none.
func pods(ctx context.Context, clients kubernetes.Interface, name string) ([]corev1.Pod, error) {
	list, err := clients.CoreV1().Pods(contract.SystemNamespace).List(ctx, metav1.ListOptions{
		LabelSelector: "app.kubernetes.io/name=" + name, FieldSelector: "status.phase=" + string(corev1.PodRunning),
	})
	if err != nil {
		return nil, fmt.Errorf("list the pods of %s: %w", name, err)
	}

	if len(list.Items) == 0 {
		return nil, fmt.Errorf("no pod of %s is running in namespace %s: install deploy/ first", name, contract.SystemNamespace)
	}

	return list.Items, nil
}
