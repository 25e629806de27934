// Package cluster performs the actions of administrators on a cluster: it scales and restarts Deployments, kills
// processes, reads metrics of pods, and adds rings with their own shards.
//
// It is for scenarios: what fails ends the scenario; see package must.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	shardingv1alpha1 "github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/example/api/v1alpha1"
	"github.com/clusterring/clusterring/tools/lab/commandline"
	"github.com/clusterring/clusterring/tools/lab/must"
	"github.com/clusterring/clusterring/tools/testkit/metrics"
)

// Patience is how long anything may take, except what takes longer with the number of objects.
const Patience = 4 * time.Minute

// Cluster is the cluster of the current context. Create it with [Connect].
type Cluster struct {
	// Client reads and writes any object, without a rate limit.
	Client client.Client
	// Config is the client configuration, without a rate limit.
	Config *rest.Config
	// Clients is for logs and proxies.
	Clients kubernetes.Interface
}

// Connect connects to the cluster of a kubeconfig; if that is empty, of $KUBECONFIG or the default one.
func Connect(kubeconfig string) *Cluster {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig

	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		must.Do(fmt.Errorf("load the configuration of the cluster (set KUBECONFIG): %w", err))
	}

	config.QPS = -1

	scheme := runtime.NewScheme()
	must.Do(errors.Join(clientgoscheme.AddToScheme(scheme), shardingv1alpha1.AddToScheme(scheme),
		v1alpha1.AddToScheme(scheme)))

	return &Cluster{
		Client: must.Get(client.New(config, client.Options{Scheme: scheme})), Config: config,
		Clients: must.Get(kubernetes.NewForConfig(config)),
	}
}

// Kubectl runs kubectl and returns its output.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) string {
	return must.Get(Command(ctx, "kubectl", args...))
}

// Command runs a program and returns its output.
func Command(ctx context.Context, program string, args ...string) (string, error) {
	return commandline.Output(exec.CommandContext(ctx, program, args...))
}

// Deployment is the name of a Deployment.
type Deployment = client.ObjectKey

// Scale sets the number of replicas.
func (c *Cluster) Scale(ctx context.Context, d Deployment, replicas int) {
	c.Kubectl(ctx, "scale", "deployment/"+d.Name, "-n", d.Namespace, fmt.Sprint("--replicas=", replicas))
}

// Restart rolls the Deployment.
func (c *Cluster) Restart(ctx context.Context, d Deployment) {
	c.Kubectl(ctx, "rollout", "restart", "deployment/"+d.Name, "-n", d.Namespace)
}

// Deployment reads a Deployment.
func (c *Cluster) Deployment(ctx context.Context, d Deployment) *appsv1.Deployment {
	deployment := &appsv1.Deployment{}
	must.Do(c.Client.Get(ctx, d, deployment))

	return deployment
}

// Rolled waits until exactly the desired number of pods exist, all from the newest template, ready, and not
// terminating.
func (c *Cluster) Rolled(ctx context.Context, d Deployment) {
	rolled := func(ctx context.Context) {
		deployment, pods := c.Deployment(ctx, d), c.Pods(ctx, d)
		want, got := ptr.Deref(deployment.Spec.Replicas, 1), deployment.Status

		must.Hold(got.ObservedGeneration == deployment.Generation && got.Replicas == want && got.UpdatedReplicas == want &&
			got.AvailableReplicas == want && len(pods) == int(want) && !slices.ContainsFunc(pods, leaving),
			"of %d replicas %d are up to date and %d available; there are %d pods",
			want, got.UpdatedReplicas, got.AvailableReplicas, len(pods))
	}

	if err := must.Attempt(func() { must.Until(ctx, Patience, rolled) }); err != nil {
		shown, _ := Command(ctx, "kubectl", "get", "pods", "-n", d.Namespace, "-o", "wide") // for people
		must.Do(fmt.Errorf("wait for Deployment %s: %w\n%s", d, err, shown))
	}
}

func leaving(pod corev1.Pod) bool { return pod.DeletionTimestamp != nil }

// Pods returns the Deployment's pods, including terminating ones.
func (c *Cluster) Pods(ctx context.Context, d Deployment) []corev1.Pod {
	var pods corev1.PodList
	must.Do(c.Client.List(ctx, &pods, client.InNamespace(d.Namespace),
		client.MatchingLabels{"app.kubernetes.io/name": d.Name}))

	return pods.Items
}

// metricsPort is the port on which every program of the project serves /metrics.
const metricsPort = "8080"

// Metric reads a metric of a pod through the proxy of the API server. It returns the sum over the series that have all
// the given labels, each written as name="value", and 0 without any series.
func (c *Cluster) Metric(ctx context.Context, pod corev1.Pod, name string, labels ...string) float64 {
	return must.Get(metrics.Sum(must.Get(c.Serves(ctx, &pod)), name, labels...))
}

// Serves returns what a pod serves at /metrics, through the proxy of the API server.
func (c *Cluster) Serves(ctx context.Context, pod *corev1.Pod) (string, error) {
	text, err := c.Clients.CoreV1().Pods(pod.Namespace).ProxyGet("http", pod.Name, metricsPort, "metrics", nil).DoRaw(ctx)
	if err != nil {
		return "", fmt.Errorf("metrics of pod %s: %w", pod.Name, err)
	}

	return string(text), nil
}
