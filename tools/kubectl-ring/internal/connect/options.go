// Package connect finds a ringquery server and opens a gRPC connection to it over which it is safe to send a token.
//
// Without an endpoint, it finds the Service in the cluster, chooses one of its ready pods, and connects through the API
// server, as kubectl port-forward does. It opens no local port, which others on the machine could use.
//
// The credentials of the kubeconfig's user never leave for ringquery, because everyone who takes over ringquery could
// use them at the API server. Instead, the package requests a token of a service account, for the audience of ringquery
// only. The API server refuses this token.
//
// # Rejected alternatives
//
// An aggregated API would authenticate users at the API server and tell ringquery who they are. But if no ringquery is
// available, discovery of its API fails. Then, Kubernetes finishes no deletion of a namespace, and kubectl reports
// errors in the whole cluster. ringquery would also need access to kube-system and permission to change its APIService.
// A service that only answers questions should do no such harm.
//
// A token of the user for another audience does not exist: the API server issues tokens only for service accounts.
//
// Answers in the plugin itself, without a server, would need permission to read Leases and all sharded objects for
// every user.
package connect

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/pflag"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/failure"
)

// Options describe where the server is and how to verify it. The zero value is not usable. AddFlags sets the defaults.
type Options struct {
	// Endpoint is host:port of a server. Empty: the server in the cluster.
	Endpoint string
	// Plaintext disables TLS.
	Plaintext bool
	// CAFile is a PEM file with the CA certificates for the server. Empty: those in the ConfigMap of the Service, or else
	// those of this machine.
	CAFile string
	// ServerName is the name that the server's certificate must have. Empty: the endpoint's host, or the Service's name.
	ServerName string
	// Insecure accepts any certificate.
	Insecure bool
	// Namespace is that of the Service.
	Namespace string
	// Account is NAMESPACE/NAME of the service account whose token is sent. Empty: ringquery-reader in Namespace.
	Account string
	// Token is sent instead. Empty: none was given.
	Token string
	// Clock determines when a token is renewed.
	Clock clock.PassiveClock
	// Timeout limits the search for the server, and each unary call. Zero: no limit.
	Timeout time.Duration
	// UserAgent is the name of the client.
	UserAgent string
}

// AddFlags registers the flags with their defaults.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.Endpoint, "endpoint", "",
		"`host:port` of a ringquery server; by default, the plugin finds one in the cluster and connects through the API "+
			"server")
	flags.StringVar(&o.Namespace, "service-namespace", contract.SystemNamespace,
		"`namespace` of the Service with the label app.kubernetes.io/name=ringquery")
	flags.StringVar(&o.Account, "service-account", "",
		"`NAMESPACE/NAME` of the service account with whose permissions you query; by default, "+readerAccount+
			" in --service-namespace, which may query all rings")
	flags.BoolVar(&o.Plaintext, "plaintext", false,
		"connect without TLS; a token is then sent only to this machine and through the API server")
	flags.StringVar(&o.CAFile, "ca-file", "", "PEM `file` with the CA certificates for the server; by default, ca.crt "+
		"in the ConfigMap ringquery-ca in the namespace of the Service, or else the CA certificates of this machine")
	flags.StringVar(&o.ServerName, "server-name", "",
		"`name` that the server's certificate must have; by default, the host of --endpoint, or SERVICE.NAMESPACE.svc")
	flags.BoolVar(&o.Insecure, "insecure-skip-tls-verify", false,
		"accept any certificate of the server; with --endpoint, no token is then sent to another machine")
}

// Validate returns an error in the flags, or nil. It reads no files.
func (o *Options) Validate() error {
	if o.Plaintext && (o.CAFile != "" || o.ServerName != "" || o.Insecure) {
		return failure.New("omit one of them", "--plaintext excludes --ca-file, --server-name, and "+
			"--insecure-skip-tls-verify")
	}

	if o.Insecure && o.CAFile != "" {
		return failure.New("omit one of them", "--insecure-skip-tls-verify excludes --ca-file")
	}

	if namespace, name, ok := strings.Cut(o.Account, "/"); o.Account != "" &&
		(!ok || namespace == "" || name == "" || strings.Contains(name, "/")) {
		return failure.New("write it as in team-a/reader", "--service-account %q is not NAMESPACE/NAME", o.Account)
	}

	if o.Endpoint == "" {
		return nil
	}

	_, port, err := net.SplitHostPort(o.Endpoint)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}

	if err != nil {
		return failure.New("write it as in 127.0.0.1:8090 or [::1]:8090", "--endpoint %q is not host:port: %w", o.Endpoint,
			err)
	}

	return nil
}

// loopback reports whether host:port is on this machine; see [Loopback].
func loopback(endpoint string) bool {
	host, _, err := net.SplitHostPort(endpoint)

	return err == nil && Loopback(host)
}

// Loopback reports whether a host is this machine. The only name that it accepts is localhost, which needs no name
// server.
func Loopback(host string) bool {
	address, err := netip.ParseAddr(host)

	return host == "localhost" || err == nil && address.Unmap().IsLoopback()
}

const (
	// readerAccount is the service account in the namespace of the Service that may query all rings.
	readerAccount = "ringquery-reader"
	// tokenLifetime is the lifetime of a token. A token is replaced after half of it, and ringquery ends connections
	// earlier than the other half, so that no stream outlives its token.
	tokenLifetime = time.Hour
	// tokenTimeout limits a request for a token.
	tokenTimeout = 10 * time.Second
)

// bearer sends a token with each call. It requests the tokens from the API server, for a service account and only for
// ringquery. It is safe for concurrent use.
type bearer struct {
	accounts      typedcorev1.ServiceAccountsGetter
	namespace     string
	account       string
	clock         clock.PassiveClock
	tls           bool // the token requires TLS
	mu            sync.Mutex
	authorization string
	renew         time.Time // zero: never
}

// bearer returns the credentials of calls. Nil: there is no cluster, and no token was given. It requests the first
// token, so that an error can be reported before the first call.
func (o *Options) bearer(ctx context.Context, config *rest.Config) (*bearer, error) {
	b := &bearer{clock: o.Clock, tls: !o.Plaintext, namespace: o.Namespace, account: readerAccount}

	switch {
	case o.Token != "":
		b.authorization = "Bearer " + o.Token
		return b, nil
	case config == nil:
		return nil, nil
	}

	if o.Account != "" {
		b.namespace, b.account, _ = strings.Cut(o.Account, "/")
	}

	client, err := typedcorev1.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}

	b.accounts = client

	if err := b.request(ctx); err != nil {
		return nil, err
	}

	return b, nil
}

// request requests a token.
func (b *bearer) request(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, tokenTimeout)
	defer cancel()

	res, err := b.accounts.ServiceAccounts(b.namespace).CreateToken(ctx, b.account, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{
			Audiences: []string{pb.TokenAudience}, ExpirationSeconds: new(int64(tokenLifetime / time.Second)),
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return failure.New("request permission to create serviceaccounts/token of it, or name another with --service-account",
			"get a token of service account %s/%s for ringquery: %w", b.namespace, b.account, err)
	}

	b.authorization, b.renew = "Bearer "+res.Status.Token, b.clock.Now().Add(tokenLifetime/2)

	return nil
}

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (b *bearer) GetRequestMetadata(ctx context.Context, _ ...string) (map[string]string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()

	if !b.renew.IsZero() && !b.clock.Now().Before(b.renew) {
		if err := b.request(ctx); err != nil {
			return nil, err
		}
	}

	return map[string]string{"authorization": b.authorization}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (b *bearer) RequireTransportSecurity() bool { return b.tls }

const (
	// caConfigMap contains the CA certificates of the Service, in the same namespace. Unlike the Secret with the server's
	// key, all clients can read it.
	caConfigMap = "ringquery-ca"
	caKey       = "ca.crt"
)

// clientTLS returns the TLS configuration. Unless a flag disables it, the server's certificate is verified: by default
// for the host to which gRPC connects.
func (o *Options) clientTLS(roots *x509.CertPool) *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		ServerName:         o.ServerName,
		RootCAs:            roots,
		InsecureSkipVerify: o.Insecure,
	}
}

// fileRoots returns the CA certificates in --ca-file. Nil: those of this machine.
func (o *Options) fileRoots() (*x509.CertPool, error) {
	if o.CAFile == "" {
		return nil, nil // nil stands for the CA certificates of this machine in crypto/tls
	}

	data, err := os.ReadFile(o.CAFile)
	if err != nil {
		return nil, failure.New("name a PEM file that you can read", "--ca-file: %w", err)
	}

	return pool(data, "--ca-file "+o.CAFile)
}

// clusterRoots returns the CA certificates that the cluster publishes for the Service. If they do not exist or may not
// be read, it returns those of this machine: the server is always verified. note describes the result, to explain a
// later failure.
func clusterRoots(
	ctx context.Context, client typedcorev1.ConfigMapsGetter, namespace string,
) (roots *x509.CertPool, note string, err error) {
	found, err := client.ConfigMaps(namespace).Get(ctx, caConfigMap, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Sprintf("verified with the CA certificates of this machine, because %v", err), nil
	}

	where := fmt.Sprintf("ConfigMap %s/%s, key %s", namespace, caConfigMap, caKey)
	roots, err = pool([]byte(found.Data[caKey]), where)

	return roots, "verified with " + where, err
}

func pool(data []byte, where string) (*x509.CertPool, error) {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(data) {
		return nil, failure.New("put PEM certificates into it, or use another with --ca-file", "%s holds no certificate",
			where)
	}

	return roots, nil
}
