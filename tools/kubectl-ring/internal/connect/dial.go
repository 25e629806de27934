package connect

import (
	"context"
	"crypto/x509"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
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

// A server that has gone without a word is noticed after these together. ringquery lets clients ask every 10 s.
const (
	keepaliveTime    = 30 * time.Second
	keepaliveTimeout = 20 * time.Second
)

// maxMessage is the size of the largest answer, in bytes: a page of 5000 objects with the longest names fits well.
const maxMessage = 64 << 20

// Connection is a gRPC connection to a ringquery server. Close it.
type Connection struct {
	*grpc.ClientConn
	where func() string
}

// Where names the server for a person: how it is reached, which pod it was the last time, how it is verified.
func (c *Connection) Where() string { return c.where() }

// Dial returns a connection; it connects with the first call. config is that of the user's cluster; nil: there is none, and an
// endpoint is needed. tunnel leads into the cluster; nil: [NewTunnel].
func Dial(ctx context.Context, o *Options, config *rest.Config, tunnel Tunnel) (*Connection, error) {
	if config != nil && config.Impersonate.UserName != "" {
		return nil, failure.New("use a kubeconfig user that does not impersonate",
			"the kubeconfig's user acts as %s, but ringquery would see who you are and answer you", config.Impersonate.UserName)
	}
	if o.Endpoint != "" {
		return dialEndpoint(o, config)
	}
	if config == nil {
		return nil, failure.New("set KUBECONFIG or --kubeconfig, or name a server with --endpoint", "there is no kubeconfig, so no cluster to look for ringquery in")
	}
	if tunnel == nil {
		tunnel = NewTunnel(config)
	}
	return dialService(ctx, o, config, tunnel)
}

func dialEndpoint(o *Options, config *rest.Config) (*Connection, error) {
	roots, err := o.fileRoots()
	if err != nil {
		return nil, err
	}
	here := loopback(o.Endpoint)
	options, err := o.security(config, hostOf(o.Endpoint), roots, sending{
		token: here || !o.Plaintext && !o.Insecure,
	})
	if err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient(o.Endpoint, options...)
	if err != nil {
		return nil, fmt.Errorf("prepare a connection to %s: %w", o.Endpoint, err)
	}
	where := o.Endpoint
	if o.Plaintext {
		where += " without TLS"
	}
	return &Connection{conn, func() string { return where }}, nil
}

func dialService(ctx context.Context, o *Options, config *rest.Config, tunnel Tunnel) (*Connection, error) {
	client, err := typedcorev1.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	service, err := FindService(ctx, client, o.Namespace)
	if err != nil {
		return nil, err
	}
	route := &route{pods: client, service: service, tunnel: tunnel}
	// The first pod is found at once: its absence is said better here than by a connection that does not come about.
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
	// The API server, which is verified, has led us to the pod: what is sent reaches no other machine.
	name := service.Name + "." + service.Namespace + ".svc"
	options, err := o.security(config, name, roots, sending{token: true})
	if err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient("passthrough:///"+name, append(options, grpc.WithContextDialer(route.open))...)
	if err != nil {
		return nil, fmt.Errorf("prepare a connection to %s: %w", name, err)
	}
	return &Connection{conn, func() string { return route.current().String() + ", through the API server, " + note }}, nil
}

// sending says what may be sent.
type sending struct{ token bool }

// security returns how a connection is secured, and what is sent over it.
func (o *Options) security(config *rest.Config, name string, roots *x509.CertPool, may sending) ([]grpc.DialOption, error) {
	options := []grpc.DialOption{
		grpc.WithUserAgent(o.UserAgent),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		grpc.WithDisableServiceConfig(),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveTime, Timeout: keepaliveTimeout}),
	}
	if o.Plaintext {
		options = append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))
	} else {
		secure, err := o.clientTLS(config, name, roots)
		if err != nil {
			return nil, err
		}
		options = append(options, grpc.WithTransportCredentials(credentials.NewTLS(secure)))
	}
	if config == nil || !may.token {
		return options, nil
	}
	token, err := newBearer(config, !o.Plaintext)
	if err != nil {
		return nil, err
	}
	return append(options, grpc.WithPerRPCCredentials(token)), nil
}

// route leads to a pod of the Service, to another one each time if there are several: whoever connects again has lost the one
// before. It is safe for concurrent use.
type route struct {
	pods    typedcorev1.PodsGetter
	service *corev1.Service
	tunnel  Tunnel

	mu     sync.Mutex
	target Target
	used   bool // the target has been opened
}

func (r *route) current() Target {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.target
}

// next chooses a pod.
func (r *route) next(ctx context.Context) error {
	target, err := FindPod(ctx, r.pods, r.service, Picker{Avoid: r.current().Pod, Choose: rand.IntN})
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.target, r.used = target, false
	return nil
}

// open connects to the pod that was chosen, and the next time to another.
func (r *route) open(ctx context.Context, _ string) (net.Conn, error) {
	r.mu.Lock()
	used := r.used
	r.used = true
	r.mu.Unlock()
	if used {
		if err := r.next(ctx); err != nil {
			return nil, err
		}
		r.mu.Lock()
		r.used = true
		r.mu.Unlock()
	}
	return r.tunnel.Open(ctx, r.current())
}
