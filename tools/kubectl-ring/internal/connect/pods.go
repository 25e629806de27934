package connect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"

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
		return Target{}, failure.New("name a server with --endpoint", "Service %s/%s selects no pods", service.Namespace,
			service.Name)
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

	return 0, failure.New("name the container's port so", "pod %s/%s has no port named %s", pod.Namespace, pod.Name,
		port.TargetPort.StrVal)
}

// Tunnel returns a connection to a port of a pod. It stops when ctx ends. The connection outlives ctx.
type Tunnel func(ctx context.Context, target Target) (net.Conn, error)

// NewTunnel returns a tunnel through the API server, as in kubectl port-forward: SPDY over a websocket, or plain SPDY
// if the API server or a proxy does not support that.
func NewTunnel(config *rest.Config) Tunnel {
	return func(ctx context.Context, target Target) (net.Conn, error) { return tunnel(ctx, config, target) }
}

func tunnel(ctx context.Context, config *rest.Config, target Target) (net.Conn, error) {
	dialer, err := dialerTo(config, target)
	if err != nil {
		return nil, fmt.Errorf("prepare the connection to %s: %w", target, err)
	}

	type result struct {
		conn net.Conn
		err  error
	}

	done := make(chan result, 1)

	go func() {
		conn, err := open(dialer, target)
		done <- result{conn, err}
	}()

	select {
	case r := <-done:
		return r.conn, r.err
	case <-ctx.Done():
		go func() { // the dialer takes no context: close the connection if it still comes
			if r := <-done; r.err == nil {
				_ = r.conn.Close()
			}
		}()

		return nil, context.Cause(ctx)
	}
}

func dialerTo(config *rest.Config, target Target) (httpstream.Dialer, error) {
	client, err := typedcorev1.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}

	address := client.RESTClient().Post().Resource("pods").Namespace(target.Namespace).Name(target.Pod).
		SubResource("portforward").URL()

	transport, upgrader, err := spdy.RoundTripperFor(config)
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig's credentials: %w", err)
	}

	plain := spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, address)

	websocket, err := portforward.NewSPDYOverWebsocketDialerForStreaming(address, config)
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig's credentials: %w", err)
	}

	return portforward.NewFallbackDialerForStreaming(websocket, plain, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	}), nil
}

// open opens one connection: a pair of streams of the port-forward protocol, one for data and one for errors.
func open(dialer httpstream.Dialer, target Target) (net.Conn, error) {
	conn, protocol, err := dialer.Dial(portforward.PortForwardProtocolV1Name)
	if err != nil {
		return nil, fmt.Errorf("port-forward to %s: %w", target, err)
	}

	fail := func(err error) (net.Conn, error) {
		_ = conn.Close() // the first error is more useful
		return nil, fmt.Errorf("port-forward to %s: %w", target, err)
	}
	if protocol != portforward.PortForwardProtocolV1Name {
		return fail(fmt.Errorf("the API server speaks %q, not %s", protocol, portforward.PortForwardProtocolV1Name))
	}

	headers := http.Header{}
	headers.Set(corev1.PortHeader, strconv.Itoa(int(target.Port)))
	headers.Set(corev1.PortForwardRequestIDHeader, "0")
	headers.Set(corev1.StreamType, corev1.StreamTypeError)

	problems, err := conn.CreateStream(headers)
	if err != nil {
		return fail(err)
	}

	if err := problems.Close(); err != nil { // nothing is written to it
		return fail(err)
	}
	headers.Set(corev1.StreamType, corev1.StreamTypeData)

	data, err := conn.CreateStream(headers)
	if err != nil {
		return fail(err)
	}

	c := &podConn{Stream: data, conn: conn, target: target, done: make(chan struct{})}
	go c.listen(problems)

	return c, nil
}

// podConn is a stream to a pod's port, as a net.Conn. Closing it ends its connection to the API server as well.
type podConn struct {
	httpstream.Stream
	conn   httpstream.Connection
	target Target
	once   sync.Once
	err    error

	done    chan struct{} // closes after the last error
	problem error         // what the kubelet reported; read after done
}

// listen reads errors of the kubelet, and ends the connection if there are any.
func (c *podConn) listen(problems io.Reader) {
	message, err := io.ReadAll(io.LimitReader(problems, 4096))
	if len(message) > 0 {
		err = errors.New(string(message))
	}

	c.problem = err
	close(c.done)

	if err != nil {
		_ = c.Reset() // so that readers get the error
	}
}

// Read reads from the pod. At the end, it returns the error of the kubelet, if any.
func (c *podConn) Read(p []byte) (int, error) {
	n, err := c.Stream.Read(p)
	if err == nil {
		return n, nil
	}

	select {
	case <-c.done:
		if c.problem != nil {
			return n, fmt.Errorf("%s: %w", c.target, c.problem)
		}
	default:
	}

	return n, err //nolint:wrapcheck // readers compare it with io.EOF
}

// Close ends the connection. Further calls return the same.
func (c *podConn) Close() error {
	c.once.Do(func() {
		_ = c.Reset() // the error of the connection is returned
		c.err = c.conn.Close()
	})

	return c.err
}

// LocalAddr returns the target, because there is no local port.
func (c *podConn) LocalAddr() net.Addr {
	return &net.UnixAddr{Name: c.target.String(), Net: "port-forward"}
}

// RemoteAddr implements [net.Conn].
func (c *podConn) RemoteAddr() net.Addr { return c.LocalAddr() }

// SetDeadline does nothing: streams have no deadlines. Callers close the connection instead.
func (*podConn) SetDeadline(time.Time) error { return nil }

// SetReadDeadline does nothing, as SetDeadline.
func (*podConn) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline does nothing, as SetDeadline.
func (*podConn) SetWriteDeadline(time.Time) error { return nil }
