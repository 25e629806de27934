package connect

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/failure"
)

const (
	// serviceLabel selects the Service.
	serviceLabel = "app.kubernetes.io/name=ringquery"
	// portName is the name of its port, if it has several.
	portName = "grpc"
)

// Target is a port of a pod.
type Target struct {
	Namespace, Pod string
	Port           int32
}

// String formats the target for people.
func (t Target) String() string { return fmt.Sprintf("pod %s/%s, port %d", t.Namespace, t.Pod, t.Port) }

// FindService returns the ringquery Service in the namespace. It fails if there is not exactly one.
func FindService(ctx context.Context, client typedcorev1.ServicesGetter, namespace string) (*corev1.Service, error) {
	list, err := client.Services(namespace).List(ctx, metav1.ListOptions{LabelSelector: serviceLabel})
	if err != nil {
		return nil, failure.New(unlisted(err, "services"),
			"find the Service of ringquery in namespace %s: %w", namespace, err)
	}

	switch len(list.Items) {
	case 0:
		return nil, failure.New("deploy it, or specify where it is: --service-namespace, --endpoint",
			"namespace %s has no Service with the label %s", namespace, serviceLabel)
	case 1:
		return &list.Items[0], nil
	default:
		var names []string
		for i := range list.Items {
			names = append(names, list.Items[i].Name)
		}

		return nil, failure.New("remove the label from all but one, or name a server with --endpoint",
			"namespace %s has several Services with the label %s: %s", namespace, serviceLabel, strings.Join(names, ", "))
	}
}

// unlisted returns advice for a failed list.
func unlisted(err error, resource string) string {
	if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
		return "request permission to list " + resource + " there, or name a server with --endpoint"
	}

	return "check the kubeconfig (--context), or name a server with --endpoint"
}

// FindPod returns a ready pod of the Service, and the port on which it serves gRPC.
func FindPod(ctx context.Context, client typedcorev1.PodsGetter, service *corev1.Service, pick Picker) (Target, error) {
	port, err := grpcPort(service)
	if err != nil {
		return Target{}, err
	}

	if len(service.Spec.Selector) == 0 {
		return Target{}, failure.New("name a server with --endpoint", "Service %s/%s selects no pods", service.Namespace, service.Name)
	}

	selector := labels.SelectorFromSet(service.Spec.Selector).String()

	list, err := client.Pods(service.Namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return Target{}, failure.New(unlisted(err, "pods"),
			"list the pods of Service %s/%s: %w", service.Namespace, service.Name, err)
	}

	ready := slices.DeleteFunc(list.Items, func(pod corev1.Pod) bool { return !IsReady(&pod) })
	if len(ready) == 0 {
		return Target{}, failure.New(fmt.Sprintf("see why: kubectl get pods -n %s -l %s", service.Namespace, selector),
			"Service %s/%s has %d pods, of which none is ready", service.Namespace, service.Name, len(list.Items))
	}

	if len(ready) > 1 {
		ready = slices.DeleteFunc(ready, func(pod corev1.Pod) bool { return pod.Name == pick.Avoid })
	}

	pod := &ready[pick.Choose(len(ready))]

	number, err := containerPort(pod, port)
	if err != nil {
		return Target{}, err
	}

	return Target{Namespace: pod.Namespace, Pod: pod.Name, Port: number}, nil
}

// Picker chooses one of several pods.
type Picker struct {
	// Avoid is the name of a pod that is chosen only if there is no other.
	Avoid string
	// Choose returns a number from 0 to n-1.
	Choose func(n int) int
}

// grpcPort returns the gRPC port of the Service.
func grpcPort(service *corev1.Service) (*corev1.ServicePort, error) {
	ports := service.Spec.Ports
	if len(ports) == 1 {
		return &ports[0], nil
	}

	for i := range ports {
		if ports[i].Name == portName {
			return &ports[i], nil
		}
	}

	return nil, failure.New("name its port "+portName, "Service %s/%s has %d ports, and none is named %s",
		service.Namespace, service.Name, len(ports), portName)
}

// IsReady reports whether a pod runs, is ready, and is not being deleted.
func IsReady(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && pod.Status.Phase == corev1.PodRunning &&
		slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
}

// containerPort returns the number of the pod's port for the port of the Service.
func containerPort(pod *corev1.Pod, port *corev1.ServicePort) (int32, error) {
	if port.TargetPort.Type == intstr.Int {
		if port.TargetPort.IntVal == 0 {
			return port.Port, nil
		}

		return port.TargetPort.IntVal, nil
	}

	for i := range pod.Spec.Containers {
		for _, p := range pod.Spec.Containers[i].Ports {
			if p.Name == port.TargetPort.StrVal {
				return p.ContainerPort, nil
			}
		}
	}

	return 0, failure.New("name the container's port so", "pod %s/%s has no port named %s", pod.Namespace, pod.Name, port.TargetPort.StrVal)
}
