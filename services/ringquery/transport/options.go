// Package transport serves gRPC: listening, TLS, limits, health, reflection, metrics, logs, and an orderly stop. It knows
// nothing of the services that it serves.
package transport

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/clusterring/clusterring/services/internal/certs"
)

// Options are the flags of a gRPC server.
type Options struct {
	// BindAddress is host:port.
	BindAddress string
	// CAMode is where the certificate comes from: CASecret or CAFile.
	CAMode string
	// Secret is for CASecret.
	Secret certs.SecretOptions
	// CAConfigMap is the name of the ConfigMap that shows clients the authorities; for CASecret.
	CAConfigMap string
	// Hosts are names and addresses that clients call the server by, besides that of its Service; for CASecret.
	Hosts []string
	// CertFile and KeyFile are PEM files, which are read again when they change; for CAFile.
	CertFile, KeyFile string
	// Plaintext serves without TLS.
	Plaintext bool
	// MaxRequestBytes is the size of the largest request.
	MaxRequestBytes int
	// MaxStreams is the number of calls that one connection may have at a time.
	MaxStreams uint32
	// MaxTotalStreams is the number of streaming calls that the server may have at a time.
	MaxTotalStreams int
	// CallTimeout is how long a call that is no stream may take.
	CallTimeout time.Duration
	// MaxConnectionAge is when a client is asked to connect again; 0: never.
	MaxConnectionAge time.Duration
	// KeepaliveTime is how long a connection may be silent until the client is asked whether it is there, and
	// KeepaliveTimeout how long it has for the answer.
	KeepaliveTime, KeepaliveTimeout time.Duration

	// flags is where AddFlags has put the flags; it knows which were set.
	flags *pflag.FlagSet
}

// Values of --ca-mode.
const (
	// CASecret means that the service makes its certificate and its authority itself, and keeps them in a Secret.
	CASecret = "secret"
	// CAFile means that others make them, and put them into files.
	CAFile = "file"
)

const (
	// minPing is how often a client may ask whether the server is there. grpc-go's clients do so every 10 s at most.
	minPing = 10 * time.Second
	// handshakeTimeout is how long a new connection may take until it speaks gRPC.
	handshakeTimeout = 10 * time.Second
	// ageGrace is how long calls may go on after their connection's time is over.
	ageGrace = time.Minute
	// maxOpenStreams is the number of streams that watch the server's health, for which nobody has to say who they are.
	maxOpenStreams = 128
	// maxHeaderBytes is the size of the largest set of headers of a call.
	maxHeaderBytes = 16 << 10
)

// AddFlags registers the flags with their defaults.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.BindAddress, "grpc-bind-address", ":8090", "`address` that serves gRPC")
	o.flags = fs
	fs.StringVar(&o.CAMode, "ca-mode", CASecret, "where the certificate comes from: secret (made and rotated by the service itself) or file")
	o.Secret.AddFlags(fs, "ringquery-tls")
	fs.StringVar(&o.CAConfigMap, "ca-config-map", "ringquery-ca", "`name` of the ConfigMap in --namespace that shows clients, under ca.crt, the authorities to verify the server by; for --ca-mode secret")
	fs.StringSliceVar(&o.Hosts, "tls-host", nil, "more `names` and addresses that the certificate is for, besides ringquery.NAMESPACE.svc; for --ca-mode secret")
	fs.StringVar(&o.CertFile, "tls-cert-file", "", "PEM `file` with the server's certificate, and those of its issuers after it; read again when it changes; for --ca-mode file")
	fs.StringVar(&o.KeyFile, "tls-private-key-file", "", "PEM `file` with the private key of --tls-cert-file; read again when it changes; for --ca-mode file")
	fs.BoolVar(&o.Plaintext, "plaintext", false, "serve without TLS, for a machine or a network where that is acceptable")
	fs.IntVar(&o.MaxRequestBytes, "grpc-max-request-bytes", 320<<10, "size of the largest request, in `bytes`")
	fs.Uint32Var(&o.MaxStreams, "grpc-max-concurrent-streams", 128, "`calls` that one connection may have at a time; more wait in the client")
	fs.IntVar(&o.MaxTotalStreams, "grpc-max-total-streams", 2000, "`streams`, such as those of WatchRing, that all connections may have at a time; more are refused")
	fs.DurationVar(&o.CallTimeout, "grpc-call-timeout", 30*time.Second, "`time` that a call may take, streams aside")
	fs.DurationVar(&o.MaxConnectionAge, "grpc-max-connection-age", 10*time.Minute, "`time` after which a client is asked to connect again, so that new replicas get their share; 0 for never")
	fs.DurationVar(&o.KeepaliveTime, "grpc-keepalive-time", time.Minute, "`time` of silence after which a client is asked whether it is still there")
	fs.DurationVar(&o.KeepaliveTimeout, "grpc-keepalive-timeout", 20*time.Second, "`time` that it has to answer")
}

// Validate returns everything that is wrong with the flags, or nil. It does not read the files.
func (o *Options) Validate() error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	if o.BindAddress == "" || o.BindAddress == "0" {
		fail("--grpc-bind-address must be set: serving gRPC is all that this service does")
	}

	errs = append(errs, o.validateTLS())

	if o.MaxRequestBytes < 1024 {
		fail("--grpc-max-request-bytes must be at least 1024, not %d", o.MaxRequestBytes)
	}

	if o.MaxStreams < 1 {
		fail("--grpc-max-concurrent-streams must be at least 1")
	}

	if o.MaxTotalStreams < 1 {
		fail("--grpc-max-total-streams must be at least 1, not %d", o.MaxTotalStreams)
	}

	if o.CallTimeout < 10*time.Millisecond {
		fail("--grpc-call-timeout must be at least 10ms, not %s", o.CallTimeout)
	}

	if o.MaxConnectionAge < 0 || o.MaxConnectionAge > 0 && o.MaxConnectionAge < time.Second {
		fail("--grpc-max-connection-age must be 0 or at least 1s, not %s", o.MaxConnectionAge)
	}

	if o.KeepaliveTime < time.Second || o.KeepaliveTimeout < time.Second {
		fail("--grpc-keepalive-time (%s) and --grpc-keepalive-timeout (%s) must be at least 1s", o.KeepaliveTime, o.KeepaliveTimeout)
	}

	return errors.Join(errs...)
}

// tlsFlags are the flags that say which certificate to serve with, by the value of --ca-mode that they are for; empty: for all.
var tlsFlags = map[string]string{
	"ca-mode": "", "tls-cert-file": CAFile, "tls-private-key-file": CAFile,
	"tls-secret": CASecret, "tls-ca-lifetime": CASecret, "tls-cert-lifetime": CASecret, "tls-host": CASecret, "ca-config-map": CASecret,
}

// validateTLS checks that one way to serve is chosen, and nothing that is for another.
func (o *Options) validateTLS() error {
	var errs []error

	for _, name := range slices.Sorted(maps.Keys(tlsFlags)) {
		mode := tlsFlags[name]

		switch given := o.given(name); {
		case given && o.Plaintext:
			errs = append(errs, fmt.Errorf("--%s and --plaintext exclude each other: choose one", name))
		case given && mode != "" && mode != o.CAMode && (o.CAMode == CASecret || o.CAMode == CAFile):
			errs = append(errs, fmt.Errorf("--%s is for --ca-mode %s", name, mode))
		}
	}

	switch {
	case len(errs) > 0 || o.Plaintext:
	case o.CAMode == CASecret:
		errs = append(errs, o.validateSecret())
	case o.CAMode != CAFile:
		errs = append(errs, fmt.Errorf("--ca-mode must be %s or %s, not %q", CASecret, CAFile, o.CAMode))
	case o.CertFile == "" || o.KeyFile == "":
		errs = append(errs, fmt.Errorf("--tls-cert-file and --tls-private-key-file are required with --ca-mode %s", CAFile))
	}

	return errors.Join(errs...)
}

// given says whether a flag was set.
func (o *Options) given(name string) bool { return o.flags != nil && o.flags.Changed(name) }

func (o *Options) validateSecret() error {
	errs := []error{o.Secret.Validate()}

	for _, msg := range validation.IsDNS1123Subdomain(o.CAConfigMap) {
		errs = append(errs, fmt.Errorf("--ca-config-map %q is no name of a ConfigMap: %s", o.CAConfigMap, msg))
	}

	for _, host := range o.Hosts {
		if msgs := validation.IsDNS1123Subdomain(host); len(msgs) > 0 && net.ParseIP(host) == nil {
			errs = append(errs, fmt.Errorf("--tls-host %q is neither a DNS name nor an IP address: %s", host, strings.Join(msgs, "; ")))
		}
	}

	return errors.Join(errs...)
}
