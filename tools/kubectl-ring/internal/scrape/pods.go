package scrape

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/connect"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/failure"
)

// mostPods is how many pods a selector may select. More than that are rather a mistake.
const mostPods = 200

// Pods says which pods serve metrics, and where.
type Pods struct {
	// Namespace is that of the pods. Selector is a label selector, which is not empty.
	Namespace, Selector string
	// Port is the number or the name of a container's port. Path begins with a slash. Scheme is http or https.
	Port, Path, Scheme string
}

// Validate returns an error in the flags, or nil.
func (p *Pods) Validate() error {
	if selector, err := labels.Parse(p.Selector); err != nil {
		return failure.New("write it as in app=website-operator", "--pods: %w", err)
	} else if selector.Empty() {
		return failure.New("write it as in app=website-operator", "--pods: the selector is empty")
	}

	if number, err := strconv.Atoi(p.Port); err == nil {
		if number < 1 || number > 65535 {
			return failure.New("use a number from 1 to 65535", "--port: there is no port %d", number)
		}
	} else if wrong := validation.IsValidPortName(p.Port); len(wrong) > 0 {
		return failure.New("use the number or the name of a container's port", "--port %q: %s", p.Port, strings.Join(wrong, ", "))
	}

	if !strings.HasPrefix(p.Path, "/") || strings.ContainsAny(p.Path, "?#") || strings.Contains(p.Path, "..") {
		return failure.New("write it as in /metrics", "--path %q is no absolute path", p.Path)
	}

	if p.Scheme != "http" && p.Scheme != "https" {
		return failure.New("use http or https", "--scheme: there is no %q", p.Scheme)
	}

	return nil
}

// Find returns the processes in the ready pods, in the order of their names. They are read through the API server.
func (p *Pods) Find(ctx context.Context, config *rest.Config) ([]Target, error) {
	through, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}

	through.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

	client, err := typedcorev1.NewForConfigAndClient(config, through)
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}

	list, err := client.Pods(p.Namespace).List(ctx, metav1.ListOptions{LabelSelector: p.Selector, Limit: mostPods + 1})

	switch {
	case apierrors.IsForbidden(err):
		return nil, failure.New(p.grant("list", "pods"), "list the pods of namespace %s: %w", p.Namespace, err)
	case err != nil:
		return nil, failure.New("check the kubeconfig (--context)", "list the pods of namespace %s: %w", p.Namespace, err)
	case len(list.Items) > mostPods:
		return nil, failure.New("select the pods of one controller", "--pods %s selects more than %d pods", p.Selector, mostPods)
	case len(list.Items) == 0:
		return nil, failure.New("check the selector and the namespace (-n)", "no pod in namespace %s has the labels %s", p.Namespace, p.Selector)
	}

	var targets []Target

	for i := range list.Items {
		pod := &list.Items[i]
		if !connect.IsReady(pod) {
			continue
		}

		target, err := p.target(api{client.RESTClient(), through, config.UserAgent}, pod)
		if err != nil {
			return nil, err
		}

		targets = append(targets, target)
	}

	if len(targets) == 0 {
		return nil, failure.New(fmt.Sprintf("see why: kubectl get pods -n %s -l %s", p.Namespace, p.Selector),
			"of %d pods in namespace %s with the labels %s, none is ready", len(list.Items), p.Namespace, p.Selector)
	}

	return targets, nil
}

// grant returns advice about a missing permission.
func (p *Pods) grant(verb, resource string) string {
	return fmt.Sprintf("request the permission: kubectl create role read-metrics -n %s --verb=%s --resource=%s, and a RoleBinding for your user. "+
		"Or use kubectl port-forward, and --metrics with the local port", p.Namespace, verb, resource)
}

// target returns the process of a pod.
func (p *Pods) target(api api, pod *corev1.Pod) (Target, error) {
	number, container := p.container(pod)
	if number == "" {
		return Target{}, failure.New("use its number, or a name from: kubectl get pod "+pod.Name+" -n "+pod.Namespace+" -o jsonpath='{.spec.containers[*].ports}'",
			"--port: pod %s has no port named %s", pod.Name, p.Port)
	}

	target := Target{Name: pod.Name}

	if container != nil {
		target.CPULimit = container.Resources.Limits.Cpu().AsApproximateFloat64()
		target.MemoryLimit = container.Resources.Limits.Memory().AsApproximateFloat64()
	}

	name := pod.Name + ":" + number
	if p.Scheme == "https" {
		name = "https:" + name
	}

	where := api.rest.Get().Namespace(pod.Namespace).Resource("pods").Name(name).SubResource("proxy").Suffix(p.Path).URL()
	target.get = func(ctx context.Context) (*answer, error) {
		got, err := get(ctx, api.http, where, headers{userAgent: api.userAgent})
		if err != nil {
			return nil, err
		}

		return got, p.refusal(got)
	}

	return target, nil
}

// api is the API server.
type api struct {
	rest      rest.Interface
	http      *http.Client
	userAgent string
}

// refusal returns the error about an answer of the API server instead of the pod. Nil: the answer is that of the pod.
func (p *Pods) refusal(got *answer) error {
	var status metav1.Status
	if parsed := json.Unmarshal(got.body, &status) == nil; got.code == http.StatusOK || !parsed || status.Kind != "Status" {
		return nil
	}

	do := "check that the process serves its metrics there: --port, --path and --scheme; those that listen on 127.0.0.1 only need kubectl port-forward, and --metrics"
	if status.Reason == metav1.StatusReasonForbidden {
		do = p.grant("get", "pods/proxy")
	}

	return failure.New(do, "the API server answered %d (%s): %s", status.Code, status.Reason, status.Message)
}

// container returns the number of the port in a pod, and the container that has it. Empty: there is no such port. Nil: the container is not
// known.
func (p *Pods) container(pod *corev1.Pod) (number string, container *corev1.Container) {
	all := pod.Spec.Containers

	if _, err := strconv.Atoi(p.Port); err == nil {
		number = p.Port
	}

	for i := range all {
		for _, port := range all[i].Ports {
			if has := strconv.Itoa(int(port.ContainerPort)); port.Name == p.Port || has == p.Port {
				return has, &all[i]
			}
		}
	}

	if number != "" && len(all) == 1 {
		return number, &all[0]
	}

	return number, nil
}
