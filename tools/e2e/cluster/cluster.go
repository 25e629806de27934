// Package cluster performs the actions of administrators on a cluster: it applies kustomizations, scales and restarts
// Deployments, deletes pods, reads metrics of pods, and adds rings with their own shards.
package cluster

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	shardingv1alpha1 "github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/example/api/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/metrics"
)

// Cluster is the cluster of the current context. Create it with [Connect]; it is safe for concurrent use.
type Cluster struct {
	// Client reads and writes any object, without a rate limit.
	Client client.WithWatch
	// Config is the client configuration, without a rate limit.
	Config *rest.Config
	// Clients is for logs, proxies and discovery.
	Clients kubernetes.Interface
	// Clock is the real clock.
	Clock clock.WithTicker
}

// Connect connects to the cluster of $KUBECONFIG or the default kubeconfig.
func Connect() (*Cluster, error) {
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(clientcmd.NewDefaultClientConfigLoadingRules(),
		nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("load the configuration of the cluster (set KUBECONFIG): %w", err)
	}

	config.QPS = -1

	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create a client for the cluster: %w", err)
	}

	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, shardingv1alpha1.AddToScheme,
		v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("register the types: %w", err)
		}
	}

	c, err := client.NewWithWatch(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("create a client for the cluster: %w", err)
	}

	return &Cluster{Client: c, Clients: clients, Config: config, Clock: clock.RealClock{}}, nil
}

// Kubectl runs kubectl and returns its output. The error of a failed command contains its standard error.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) (string, error) {
	return Command(ctx, "kubectl", args...)
}

// Command runs a program and returns its output. The error of a failed program contains its standard error.
func Command(ctx context.Context, program string, args ...string) (string, error) {
	var out, complaint bytes.Buffer

	command := exec.CommandContext(ctx, program, args...)

	command.Stdout, command.Stderr = &out, &complaint
	if err := command.Run(); err != nil {
		return out.String(), fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err,
			strings.TrimSpace(complaint.String()))
	}

	return out.String(), nil
}

// Deployment is the name of a Deployment.
type Deployment struct{ Namespace, Name string }

// String returns namespace/name.
func (d Deployment) String() string { return d.Namespace + "/" + d.Name }

// Scale sets the number of replicas.
func (c *Cluster) Scale(ctx context.Context, d Deployment, replicas int) error {
	return c.patch(ctx, d, types.MergePatchType, fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas))
}

// Restart rolls the Deployment, as kubectl rollout restart does.
func (c *Cluster) Restart(ctx context.Context, d Deployment) error {
	return c.patch(ctx, d, types.MergePatchType, fmt.Appendf(nil,
		`{"spec":{"template":{"metadata":{"annotations":{"kubectl.kubernetes.io/restartedAt":%q}}}}}`, c.Clock.Now().Format(time.RFC3339Nano)))
}

// Image returns the image of the Deployment's first container.
func (c *Cluster) Image(ctx context.Context, d Deployment) (string, error) {
	deployment, err := c.deployment(ctx, d)
	if err != nil {
		return "", err
	}

	return deployment.Spec.Template.Spec.Containers[0].Image, nil
}

// SetImage sets the image of the Deployment's first container. If the image changes, the Deployment rolls.
func (c *Cluster) SetImage(ctx context.Context, d Deployment, image string) error {
	return c.patch(ctx, d, types.JSONPatchType, fmt.Appendf(nil,
		`[{"op":"replace","path":"/spec/template/spec/containers/0/image","value":%q}]`, image))
}

func (c *Cluster) patch(ctx context.Context, d Deployment, kind types.PatchType, patch []byte) error {
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: d.Namespace, Name: d.Name}}
	if err := c.Client.Patch(ctx, deployment, client.RawPatch(kind, patch)); err != nil {
		return fmt.Errorf("change Deployment %s: %w", d, err)
	}

	return nil
}

// Replicas returns the desired number of replicas of the Deployment.
func (c *Cluster) Replicas(ctx context.Context, d Deployment) (int, error) {
	deployment, err := c.deployment(ctx, d)
	if err != nil {
		return 0, err
	}

	return int(ptr.Deref(deployment.Spec.Replicas, 1)), nil
}

func (d Deployment) key() client.ObjectKey {
	return client.ObjectKey{Namespace: d.Namespace, Name: d.Name}
}

func (c *Cluster) deployment(ctx context.Context, d Deployment) (*appsv1.Deployment, error) {
	deployment := &appsv1.Deployment{}
	if err := c.Client.Get(ctx, d.key(), deployment); err != nil {
		return nil, fmt.Errorf("read Deployment %s: %w", d, err)
	}

	return deployment, nil
}

// Rolled waits until exactly the desired number of pods exist, all from the newest template, ready, and not
// terminating.
func (c *Cluster) Rolled(ctx context.Context, d Deployment, limit time.Duration) error {
	err := c.Until(ctx, limit, func(ctx context.Context) error {
		deployment, err := c.deployment(ctx, d)
		if err != nil {
			return err
		}

		want, got := ptr.Deref(deployment.Spec.Replicas, 1), deployment.Status

		pods, err := c.Pods(ctx, d)
		if err != nil {
			return err
		}

		if got.ObservedGeneration != deployment.Generation || got.Replicas != want || got.UpdatedReplicas != want ||
			got.AvailableReplicas != want || len(pods) != int(want) || slices.ContainsFunc(pods, leaving) {
			return fmt.Errorf("of %d replicas %d are up to date and %d available; there are %d pods",
				want, got.UpdatedReplicas, got.AvailableReplicas, len(pods))
		}

		return nil
	})
	if err != nil {
		shown, _ := c.Kubectl(ctx, "get", "pods", "-n", d.Namespace, "-o", "wide") // for people
		return fmt.Errorf("wait for Deployment %s: %w\n%s", d, err, shown)
	}

	return nil
}

func leaving(pod corev1.Pod) bool { return pod.DeletionTimestamp != nil }

// Pods returns the Deployment's pods, including terminating ones.
func (c *Cluster) Pods(ctx context.Context, d Deployment) ([]corev1.Pod, error) {
	var pods corev1.PodList
	if err := c.Client.List(ctx, &pods, client.InNamespace(d.Namespace),
		client.MatchingLabels{"app.kubernetes.io/name": d.Name}); err != nil {
		return nil, fmt.Errorf("list the pods of Deployment %s: %w", d, err)
	}

	return pods.Items, nil
}

// DeletePods deletes all pods of the Deployment.
func (c *Cluster) DeletePods(ctx context.Context, d Deployment) error {
	err := c.Client.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace(d.Namespace),
		client.MatchingLabels{"app.kubernetes.io/name": d.Name})
	if err != nil {
		return fmt.Errorf("delete the pods of Deployment %s: %w", d, err)
	}

	return nil
}

func roleRef(kind, name string) rbacv1.RoleRef {
	return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: name}
}

const (
	// look is the shortest interval between checks of a condition. A check that takes long is repeated after restful times
	// as long, at most longestRest, because it keeps the cluster from what it waits for.
	look        = 200 * time.Millisecond
	restful     = 4
	longestRest = 15 * time.Second
)

// Until checks a condition until it returns no problem, at most for the given time. The error contains the last
// problem.
func (c *Cluster) Until(ctx context.Context, limit time.Duration, problem func(context.Context) error) error {
	var last error

	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()

	for {
		began := c.Clock.Now()

		err := problem(limited)
		if err == nil {
			return nil
		}

		if limited.Err() == nil || last == nil {
			last = err
		}

		select {
		case <-c.Clock.After(min(longestRest, max(look, restful*c.Clock.Since(began)))):
		case <-limited.Done():
			if ctx.Err() == nil && problem(ctx) == nil { // what has become true in the meantime counts
				return nil
			}

			return fmt.Errorf("after %s: %w", limit, last)
		}
	}
}

// metricsPort is the port on which every program of the project serves /metrics.
const metricsPort = "8080"

// Metric reads a metric of a pod through the proxy of the API server. It returns the sum over the series that have all
// the given labels, each written as name="value", and 0 without any series.
func (c *Cluster) Metric(ctx context.Context, pod corev1.Pod, name string, labels ...string) (float64, error) {
	text, err := c.Clients.CoreV1().Pods(pod.Namespace).ProxyGet("http", pod.Name, metricsPort, "metrics", nil).DoRaw(ctx)
	if err != nil {
		return 0, fmt.Errorf("read the metrics of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}

	return metrics.Sum(string(text), name, labels...)
}
