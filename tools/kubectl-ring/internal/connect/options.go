// Package connect finds a ringquery server and opens a gRPC connection to it that is safe to send a token over.
//
// Without an endpoint it asks the cluster for the Service, picks one of its ready pods, and reaches it through the API
// server, as kubectl port-forward does, but without a local port that others on the machine could use.
package connect

import (
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/spf13/pflag"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/failure"
)

// Options say where the server is and how to trust it. The zero value is not usable: take that of AddFlags.
type Options struct {
	// Endpoint is host:port of a server. Empty: the one in the cluster.
	Endpoint string
	// Plaintext speaks without TLS.
	Plaintext bool
	// CAFile is a PEM file with the certificates of those who may issue the server's. Empty: the ConfigMap of the Service, or
	// else the authorities of this machine.
	CAFile string
	// ServerName is the name that the server's certificate must have. Empty: the endpoint's host, or the Service's name.
	ServerName string
	// Insecure takes any certificate.
	Insecure bool
	// Namespace is that of the Service.
	Namespace string
	// Timeout limits the search for the server, and each unary call. Zero: no limit.
	Timeout time.Duration
	// UserAgent is how the client introduces itself.
	UserAgent string
}

// AddFlags registers the flags with their defaults.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.Endpoint, "endpoint", "", "`host:port` of a ringquery server; by default one is found in the cluster and reached through the API server")
	flags.StringVar(&o.Namespace, "service-namespace", v1alpha1.SystemNamespace, "`namespace` of the Service with the label app.kubernetes.io/name=ringquery")
	flags.BoolVar(&o.Plaintext, "plaintext", false, "speak to the server without TLS; a token is then sent to this machine and through the API server only")
	flags.StringVar(&o.CAFile, "ca-file", "", "PEM `file` with the authorities that may vouch for the server; by default the key ca.crt of the ConfigMap ringquery-ca beside the Service, or else this machine's")
	flags.StringVar(&o.ServerName, "server-name", "", "`name` that the server's certificate must have; by default the host of --endpoint, or SERVICE.NAMESPACE.svc")
	flags.BoolVar(&o.Insecure, "insecure-skip-tls-verify", false, "take any certificate of the server; with --endpoint no token is then sent to another machine")
}

// Validate returns what is wrong with the flags, or nil. It reads no files.
func (o *Options) Validate() error {
	if o.Plaintext && (o.CAFile != "" || o.ServerName != "" || o.Insecure) {
		return failure.New("leave one out", "--plaintext goes with none of --ca-file, --server-name, --insecure-skip-tls-verify")
	}
	if o.Insecure && o.CAFile != "" {
		return failure.New("leave one out", "--insecure-skip-tls-verify does not go with --ca-file")
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

// loopback reports whether host:port is on this machine. Of names it knows localhost alone, which is never asked of a network.
func loopback(endpoint string) bool {
	host, _, err := net.SplitHostPort(endpoint)
	if err != nil {
		return false
	}
	address, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && address.Unmap().IsLoopback()
}
