// Package cluster performs the actions of administrators on a cluster: it applies kustomizations, scales and restarts Deployments, deletes
// pods, reads metrics of pods, and adds rings with their own shards.
package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
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
	// ExampleImage is the image of the shards of added rings; empty for the image of the installed example.
	ExampleImage string

	kubectl string
}

// Connect connects to the cluster of $KUBECONFIG or the default kubeconfig. kubectl is the path of the kubectl program, or its name in
// $PATH.
func Connect(kubectl string) (*Cluster, error) {
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(clientcmd.NewDefaultClientConfigLoadingRules(), nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("load the configuration of the cluster (set KUBECONFIG): %w", err)
	}

	config.QPS = -1

	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create a client for the cluster: %w", err)
	}

	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, shardingv1alpha1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("register the types: %w", err)
		}
	}

	c, err := client.NewWithWatch(config, client.Options{Scheme: scheme, Mapper: mapper()})
	if err != nil {
		return nil, fmt.Errorf("create a client for the cluster: %w", err)
	}

	return &Cluster{Client: c, Clients: clients, Config: config, Clock: clock.RealClock{}, kubectl: kubectl}, nil
}

// mapper knows the kinds of the tests without discovery, because the server does not serve all of them all the time.
func mapper() meta.RESTMapper {
	m := meta.NewDefaultRESTMapper(nil)

	for gvk := range clientgoscheme.Scheme.AllKnownTypes() {
		scope := meta.RESTScopeNamespace

		switch gvk.Kind {
		case "Namespace", "Node", "ClusterRole", "ClusterRoleBinding", "MutatingWebhookConfiguration":
			scope = meta.RESTScopeRoot
		}
		m.Add(gvk, scope)
	}
	m.Add(shardingv1alpha1.GroupVersion.WithKind("ClusterRing"), meta.RESTScopeRoot)

	for _, kind := range []string{"Website", "Fleet", "Ship"} {
		m.Add(v1alpha1.SchemeGroupVersion.WithKind(kind), meta.RESTScopeNamespace)
	}

	return m
}

// Kubectl runs kubectl and returns its output. The error of a failed command contains its standard error.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) (string, error) {
	return Command(ctx, c.kubectl, args...)
}

// Command runs a program and returns its output. The error of a failed program contains its standard error.
func Command(ctx context.Context, program string, args ...string) (string, error) {
	return CommandWith(ctx, nil, program, args...)
}

// CommandWith is [Command] with additional environment variables, each as NAME=value. They do not appear in errors.
func CommandWith(ctx context.Context, more []string, program string, args ...string) (string, error) {
	var out, complaint bytes.Buffer

	command := exec.CommandContext(ctx, program, args...)

	command.Stdout, command.Stderr, command.Env = &out, &complaint, append(os.Environ(), more...)
	if err := command.Run(); err != nil {
		return out.String(), fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, strings.TrimSpace(complaint.String()))
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
	return c.setContainer(ctx, d, "image", image)
}

// Arguments returns the arguments of the Deployment's first container.
func (c *Cluster) Arguments(ctx context.Context, d Deployment) ([]string, error) {
	deployment, err := c.deployment(ctx, d)
	if err != nil {
		return nil, err
	}

	return deployment.Spec.Template.Spec.Containers[0].Args, nil
}

// SetArguments sets the arguments of the Deployment's first container. If they change, the Deployment rolls.
func (c *Cluster) SetArguments(ctx context.Context, d Deployment, arguments []string) error {
	return c.setContainer(ctx, d, "args", arguments)
}

// setContainer replaces a field of the Deployment's first container.
func (c *Cluster) setContainer(ctx context.Context, d Deployment, field string, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("encode %s for Deployment %s: %w", field, d, err)
	}

	return c.patch(ctx, d, types.JSONPatchType, fmt.Appendf(nil, `[{"op":"replace","path":"/spec/template/spec/containers/0/%s","value":%s}]`, field, text))
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

// Rolled waits until exactly the desired number of pods exist, all from the newest template, ready, and not terminating.
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
			return fmt.Errorf("of %d replicas %d are up to date and %d available; there are %d pods: %s",
				want, got.UpdatedReplicas, got.AvailableReplicas, len(pods), phases(pods))
		}

		return nil
	})
	if err != nil {
		return fmt.Errorf("wait for Deployment %s: %w", d, err)
	}

	return nil
}

func leaving(pod corev1.Pod) bool { return pod.DeletionTimestamp != nil }

func phases(pods []corev1.Pod) string {
	var all []string

	for _, p := range pods {
		state := string(p.Status.Phase)
		if leaving(p) {
			state = "Terminating"
		}

		for _, s := range p.Status.ContainerStatuses {
			if s.State.Waiting != nil {
				state += " " + s.State.Waiting.Reason + " " + s.State.Waiting.Message
			}
		}

		all = append(all, p.Name+" "+state)
	}

	return strings.Join(all, ", ")
}

// Pods returns the Deployment's pods, including terminating ones.
func (c *Cluster) Pods(ctx context.Context, d Deployment) ([]corev1.Pod, error) {
	var pods corev1.PodList
	if err := c.Client.List(ctx, &pods, client.InNamespace(d.Namespace), client.MatchingLabels{"app.kubernetes.io/name": d.Name}); err != nil {
		return nil, fmt.Errorf("list the pods of Deployment %s: %w", d, err)
	}

	return pods.Items, nil
}

// DeletePods deletes all pods of the Deployment.
func (c *Cluster) DeletePods(ctx context.Context, d Deployment) error {
	err := c.Client.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace(d.Namespace), client.MatchingLabels{"app.kubernetes.io/name": d.Name})
	if err != nil {
		return fmt.Errorf("delete the pods of Deployment %s: %w", d, err)
	}

	return nil
}
