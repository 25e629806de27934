package connect

import (
	"context"
	"crypto/x509"
	"fmt"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	corev1 "k8s.io/api/core/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/failure"
)

// A silent failure of the server is detected after the sum of these. ringquery allows a ping every 10 s.
const (
	keepaliveTime    = 30 * time.Second
	keepaliveTimeout = 20 * time.Second
)

// maxMessage is the maximum size of an answer, in bytes. A page of 5000 objects with the longest names fits.
const maxMessage = 64 << 20

// Connection is a gRPC connection to a ringquery server. Close it.
type Connection struct {
	*grpc.ClientConn

	// Where describes the server to a person: how it is reached, the last pod, and how it is verified.
	Where func() string
}

// Dial returns a connection, which connects at the first call. config is that of the user's cluster. Nil: there is
// none, and an endpoint is required. tunnel leads into the cluster. Nil: [NewTunnel].
func Dial(ctx context.Context, o *Options, config *rest.Config, tunnel Tunnel) (*Connection, error) {
	if o.Endpoint != "" {
		return dialEndpoint(ctx, o, config)
	}

	if config == nil {
		return nil, failure.New("set KUBECONFIG or --kubeconfig, or name a server with --endpoint",
			"there is no kubeconfig, so ringquery cannot be found in a cluster")
	}

	if tunnel == nil {
		tunnel = NewTunnel(config)
	}

	return dialService(ctx, o, config, tunnel)
}

func dialEndpoint(ctx context.Context, o *Options, config *rest.Config) (*Connection, error) {
	ctx, cancel := o.limited(ctx)
	defer cancel()

	roots, err := o.fileRoots()
	if err != nil {
		return nil, err
	}

	where := o.Endpoint
	if o.Plaintext {
		where += " without TLS"
	}

	var sender *bearer

	if loopback(o.Endpoint) || !o.Plaintext && !o.Insecure {
		if sender, err = o.bearer(ctx, config); err != nil {
			where += ", without a token (" + err.Error() + ")" // the server may need none
		}
	}

	conn, err := grpc.NewClient(o.Endpoint, o.security(sender, roots)...)
	if err != nil {
		return nil, fmt.Errorf("prepare a connection to %s: %w", o.Endpoint, err)
	}

	return &Connection{conn, func() string { return where }}, nil
}

func dialService(ctx context.Context, o *Options, config *rest.Config, tunnel Tunnel) (*Connection, error) {
	ctx, cancel := o.limited(ctx)
	defer cancel()

	client, err := typedcorev1.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}

	service, err := FindService(ctx, client, o.Namespace)
	if err != nil {
		return nil, err
	}

	route := &route{pods: client, service: service, tunnel: tunnel}
	// Find the first pod now, because its absence results in a better error here than after a failed connection.
	if err := route.next(ctx); err != nil {
		return nil, err
	}

	roots, note := (*x509.CertPool)(nil), "without TLS"

	switch {
	case o.Plaintext:
	case o.Insecure:
		note = "not verified"
	case o.CAFile != "":
		roots, err = o.fileRoots()
		note = "verified with " + o.CAFile
	default:
		roots, note, err = clusterRoots(ctx, client, o.Namespace)
	}

	if err != nil {
		return nil, err
	}

	// The token reaches only the pod, because the connection passes through the verified API server.
	sender, err := o.bearer(ctx, config)
	if err != nil {
		return nil, err
	}

	name := service.Name + "." + service.Namespace + ".svc"

	conn, err := grpc.NewClient("passthrough:///"+name, append(o.security(sender, roots), grpc.WithContextDialer(route.open))...)
	if err != nil {
		return nil, fmt.Errorf("prepare a connection to %s: %w", name, err)
	}

	return &Connection{conn, func() string {
		return route.target.Load().String() + ", through the API server, " + note
	}}, nil
}

// limited returns a context that ends after the timeout, if there is one.
func (o *Options) limited(ctx context.Context) (context.Context, context.CancelFunc) {
	if o.Timeout == 0 {
		return context.WithCancel(ctx)
	}

	return context.WithTimeout(ctx, o.Timeout)
}

// security returns the options of a connection. sender provides the token; nil: none is sent.
func (o *Options) security(sender *bearer, roots *x509.CertPool) []grpc.DialOption {
	limit := func(
		ctx context.Context, method string, req, res any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker,
		call ...grpc.CallOption,
	) error {
		ctx, cancel := o.limited(ctx)
		defer cancel()

		return invoke(ctx, method, req, res, conn, call...)
	}

	options := []grpc.DialOption{
		grpc.WithUserAgent(o.UserAgent),
		grpc.WithUnaryInterceptor(limit),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		grpc.WithDisableServiceConfig(),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveTime, Timeout: keepaliveTimeout}),
	}
	if o.Plaintext {
		options = append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))
	} else {
		options = append(options, grpc.WithTransportCredentials(credentials.NewTLS(o.clientTLS(roots))))
	}

	if sender == nil {
		return options
	}

	return append(options, grpc.WithPerRPCCredentials(sender))
}

// route leads to a pod of the Service. Each new connection leads to another pod if there are several, because the
// previous one was lost. It is safe for concurrent use.
type route struct {
	pods    typedcorev1.PodsGetter
	service *corev1.Service
	tunnel  Tunnel

	target atomic.Pointer[Target]
	used   atomic.Bool // the target has been opened
}

// next chooses a pod.
func (r *route) next(ctx context.Context) error {
	pick := Picker{Choose: rand.IntN}
	if last := r.target.Load(); last != nil {
		pick.Avoid = last.Pod
	}

	target, err := FindPod(ctx, r.pods, r.service, pick)
	if err == nil {
		r.target.Store(&target)
	}

	return err
}

// open connects to the chosen pod, and next time to another.
func (r *route) open(ctx context.Context, _ string) (net.Conn, error) {
	if r.used.Swap(true) {
		if err := r.next(ctx); err != nil {
			return nil, err
		}
	}

	return r.tunnel(ctx, *r.target.Load())
}
