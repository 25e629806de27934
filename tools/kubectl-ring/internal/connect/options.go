// Package connect finds a ringquery server and opens a gRPC connection to it over which it is safe to send a token.
//
// Without an endpoint, it finds the Service in the cluster, chooses one of its ready pods, and connects through the API server, as kubectl
// port-forward does. It opens no local port, which others on the machine could use.
//
// The credentials of the kubeconfig's user never leave for ringquery, because whoever takes over ringquery could use them at the API server.
// Instead, the package requests a token of a service account, for the audience of ringquery only. The API server refuses this token.
//
// # Rejected alternatives
//
// An aggregated API would authenticate users at the API server and tell ringquery who they are. But if no ringquery is available, discovery of
// its API fails. Then, Kubernetes finishes no deletion of a namespace, and kubectl reports errors in the whole cluster. ringquery would also
// need access to kube-system and permission to change its APIService. A service that only answers questions should do no such harm.
//
// A token of the user for another audience does not exist: the API server issues tokens only for service accounts.
//
// Answers in the plugin itself, without a server, would need permission to read Leases and all sharded objects for every user.
package connect

import (
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/failure"
)

// Options describe where the server is and how to verify it. The zero value is not usable. AddFlags sets the defaults.
type Options struct {
	// Endpoint is host:port of a server. Empty: the server in the cluster.
	Endpoint string
	// Plaintext disables TLS.
	Plaintext bool
	// CAFile is a PEM file with the CA certificates for the server. Empty: those in the ConfigMap of the Service, or else those of
	// this machine.
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
	flags.StringVar(&o.Endpoint, "endpoint", "", "`host:port` of a ringquery server; by default, the plugin finds one in the cluster and connects through the API server")
	flags.StringVar(&o.Namespace, "service-namespace", contract.SystemNamespace, "`namespace` of the Service with the label app.kubernetes.io/name=ringquery")
	flags.StringVar(&o.Account, "service-account", "", "`NAMESPACE/NAME` of the service account with whose permissions you query; by default, "+readerAccount+" in --service-namespace, which may query all rings")
	flags.BoolVar(&o.Plaintext, "plaintext", false, "connect without TLS; a token is then sent only to this machine and through the API server")
	flags.StringVar(&o.CAFile, "ca-file", "", "PEM `file` with the CA certificates for the server; by default, ca.crt in the ConfigMap ringquery-ca in the namespace of the Service, or else the CA certificates of this machine")
	flags.StringVar(&o.ServerName, "server-name", "", "`name` that the server's certificate must have; by default, the host of --endpoint, or SERVICE.NAMESPACE.svc")
	flags.BoolVar(&o.Insecure, "insecure-skip-tls-verify", false, "accept any certificate of the server; with --endpoint, no token is then sent to another machine")
}

// Validate returns an error in the flags, or nil. It reads no files.
func (o *Options) Validate() error {
	if o.Plaintext && (o.CAFile != "" || o.ServerName != "" || o.Insecure) {
		return failure.New("omit one of them", "--plaintext excludes --ca-file, --server-name, and --insecure-skip-tls-verify")
	}

	if o.Insecure && o.CAFile != "" {
		return failure.New("omit one of them", "--insecure-skip-tls-verify excludes --ca-file")
	}

	if namespace, name, ok := strings.Cut(o.Account, "/"); o.Account != "" && (!ok || namespace == "" || name == "" || strings.Contains(name, "/")) {
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
		return failure.New("write it as in 127.0.0.1:8090 or [::1]:8090", "--endpoint %q is not host:port: %w", o.Endpoint, err)
	}

	return nil
}

// loopback reports whether host:port is on this machine; see [Loopback].
func loopback(endpoint string) bool {
	host, _, err := net.SplitHostPort(endpoint)

	return err == nil && Loopback(host)
}

// Loopback reports whether a host is this machine. The only name that it accepts is localhost, which needs no name server.
func Loopback(host string) bool {
	address, err := netip.ParseAddr(host)

	return host == "localhost" || err == nil && address.Unmap().IsLoopback()
}
