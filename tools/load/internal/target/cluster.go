package target

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

// metricsPort is the port on which every service serves /metrics in a cluster.
const metricsPort = "8080"

// cluster is a cluster where the services are installed.
type cluster struct {
	*System
	clients kubernetes.Interface

	mu      sync.Mutex
	created []client.Object
}

// Connect connects to the cluster of a kubeconfig file, where the services must be running. It grants them permissions on the measured
// resources. Call Stop on the result, also after an error, unless it is nil.
func Connect(ctx context.Context, kubeconfig string) (*System, error) {
	rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: kubeconfig}

	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("load the configuration of the cluster: %w", err)
	}

	c := &cluster{}
	if c.System, err = newSystem(config, c); err != nil {
		return nil, err
	}

	if c.clients, err = kubernetes.NewForConfig(c.Config); err != nil {
		return nil, fmt.Errorf("create a client for the cluster: %w", err)
	}

	for _, name := range Services {
		pods, err := c.pods(ctx, name)
		if err != nil {
			return nil, err
		}

		if len(pods) == 0 {
			return nil, fmt.Errorf("no pod of %s is running in namespace %s: install deploy/ first", name, v1alpha1.SystemNamespace)
		}
	}

	return c.System, c.grant(ctx)
}

func (c *cluster) metricsOf(ctx context.Context, name string) ([]string, error) {
	pods, err := c.pods(ctx, name)
	if err != nil {
		return nil, err
	}

	var texts []string

	for _, pod := range pods {
		text, err := c.clients.CoreV1().Pods(pod.Namespace).ProxyGet("http", pod.Name, metricsPort, "metrics", nil).DoRaw(ctx)
		if err != nil {
			return nil, fmt.Errorf("read the metrics of pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}

		texts = append(texts, string(text))
	}

	return texts, nil
}

// pods returns the running pods of a service.
func (c *cluster) pods(ctx context.Context, name string) ([]corev1.Pod, error) {
	list, err := c.clients.CoreV1().Pods(v1alpha1.SystemNamespace).List(ctx, metav1.ListOptions{
		LabelSelector: "app.kubernetes.io/name=" + name, FieldSelector: "status.phase=" + string(corev1.PodRunning),
	})
	if err != nil {
		return nil, fmt.Errorf("list the pods of %s: %w", name, err)
	}

	return list.Items, nil
}

func (c *cluster) remember(o client.Object) {
	c.mu.Lock()
	defer c.mu.Unlock()

	c.created = append(c.created, o)
}

// stop removes the created objects.
func (c *cluster) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()

	var errs []error
	for _, o := range slices.Backward(c.created) {
		errs = append(errs, client.IgnoreNotFound(c.Client.Delete(ctx, o)))
	}

	return errors.Join(errs...)
}
