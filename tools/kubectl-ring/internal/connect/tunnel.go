package connect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"
)

// Tunnel returns a connection to a port of a pod. It stops when ctx ends. The connection outlives ctx.
type Tunnel func(ctx context.Context, target Target) (net.Conn, error)

// NewTunnel returns a tunnel through the API server, as in kubectl port-forward: SPDY over a websocket, or plain SPDY if the API server or
// a proxy does not support that.
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

	address := client.RESTClient().Post().Resource("pods").Namespace(target.Namespace).Name(target.Pod).SubResource("portforward").URL()

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
