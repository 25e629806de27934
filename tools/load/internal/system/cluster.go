package system

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/load/internal/objects"
)

// metricsPort is where every service serves /metrics in a cluster.
const metricsPort = "8080"

// cluster reads what services of a cluster say of themselves.
type cluster struct {
	clients kubernetes.Interface
	config  *rest.Config
}

// Connect returns the cluster of a kubeconfig file, where the services have to run. It creates what grants rights on the measured resources
// to them, which Stop removes.
func Connect(ctx context.Context, kubeconfig string, o Options) (*System, error) {
	rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: kubeconfig}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("find out how to reach the cluster: %w", err)
	}
	s := &System{options: o, death: make(chan error, 1)}
	if err := s.use(config); err != nil {
		return nil, err
	}
	clients, err := kubernetes.NewForConfig(s.Config)
	if err != nil {
		return nil, fmt.Errorf("make a client of the cluster: %w", err)
	}
	s.cluster = &cluster{clients: clients, config: s.Config}
	for _, name := range Services {
		pods, err := s.cluster.pods(ctx, name)
		if err != nil {
			return nil, err
		}
		if len(pods) == 0 {
			return nil, fmt.Errorf("no pod of %s runs in namespace %s: install deploy/ first", name, v1alpha1.SystemNamespace)
		}
	}
	if err := s.grant(ctx); err != nil {
		return s, err
	}
	return s, nil
}

// metrics returns the metrics of all that can be reached.
func (c *cluster) metrics(ctx context.Context) (map[string][]string, error) {
	all := map[string][]string{}
	for _, name := range Services {
		texts, err := c.metricsOf(ctx, name)
		if err != nil {
			return nil, err
		}
		all[name] = texts
	}
	text, err := rawGet(ctx, c.config, "/metrics")
	if err != nil {
		return nil, err
	}
	all[APIServer] = []string{text}
	return all, nil
}

// metricsOf returns the metrics of each replica of a service.
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

// rawGet reads a path of the API server.
func rawGet(ctx context.Context, config *rest.Config, path string) (string, error) {
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return "", fmt.Errorf("make a client of the API server: %w", err)
	}
	return getOK(ctx, httpClient, strings.TrimRight(config.Host, "/")+path)
}

// grant gives the services the rights on what is sharded in measurements, as whoever makes a ring does.
func (s *System) grant(ctx context.Context) error {
	for label, verbs := range map[string][]string{
		v1alpha1.LabelAggregateToRebalancer: {"get", "list", "watch", "patch"},
		v1alpha1.LabelAggregateToRingQuery:  {"get", "list", "watch"},
	} {
		role := &rbacv1.ClusterRole{
			ObjectMeta: metav1.ObjectMeta{Name: "load:" + filepath.Base(label), Labels: map[string]string{label: "true"}},
			Rules: []rbacv1.PolicyRule{
				{APIGroups: []string{""}, Resources: []string{objects.ConfigMaps.Resource}, Verbs: verbs},
				{APIGroups: []string{objects.Deployments.Group}, Resources: []string{objects.Deployments.Resource}, Verbs: verbs},
				{APIGroups: []string{objects.Websites.Group}, Resources: []string{objects.Websites.Resource}, Verbs: verbs},
			},
		}
		err := client.IgnoreAlreadyExists(s.Client.Create(ctx, role))
		if err != nil {
			return fmt.Errorf("grant rights to the services: %w", err)
		}
		s.undo = append(s.undo, func(ctx context.Context) error {
			return client.IgnoreNotFound(s.Client.Delete(ctx, role))
		})
	}
	return nil
}

// Namespace makes a new namespace for objects and Leases, whose name begins with the prefix, with labels of the given keys. Stop removes it from a cluster; here
// it lasts as long as the control plane.
func (s *System) Namespace(ctx context.Context, prefix string, labels ...string) (string, error) {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: prefix + "-", Labels: map[string]string{}}}
	for _, key := range labels {
		ns.Labels[key] = "true"
	}
	if err := s.Client.Create(ctx, ns); err != nil {
		return "", fmt.Errorf("create a namespace: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.undo = append(s.undo, func(ctx context.Context) error {
		return client.IgnoreNotFound(s.Client.Delete(ctx, ns))
	})
	return ns.Name, nil
}

// Until waits until the condition holds, for two minutes at most; what names it in the error.
func Until(ctx context.Context, what string, condition func(context.Context) (bool, error)) error {
	const patience = 2 * readyTimeout
	err := wait.PollUntilContextTimeout(ctx, pollInterval, patience, true, condition)
	if err != nil && ctx.Err() != nil {
		return errors.Join(context.Cause(ctx), fmt.Errorf("while waiting until %s", what))
	}
	if err != nil {
		return fmt.Errorf("wait until %s: %w", what, err)
	}
	return nil
}
