// Package transport serves gRPC: listening, TLS, limits, health, reflection, metrics, logs, and graceful shutdown. It
// does not depend on the services that it serves.
package transport

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/clusterring/clusterring/services/internal/certs"
)

// Options are the flags of a gRPC server.
type Options struct {
	// BindAddress is host:port.
	BindAddress string
	// CAMode is the source of the certificate: CASecret or CAFile.
	CAMode string
	// Secret is for CASecret.
	Secret certs.SecretOptions
	// CAConfigMap is the name of the ConfigMap that publishes the CA certificates; for CASecret.
	CAConfigMap string
	// CertFile and KeyFile are PEM files, which are read again when they change; for CAFile.
	CertFile, KeyFile string
	// Plaintext serves without TLS.
	Plaintext bool
	// MaxTotalStreams is the maximum number of concurrent streaming calls.
	MaxTotalStreams int
	// CallTimeout is the maximum duration of a unary call.
	CallTimeout time.Duration
}

// Values of --ca-mode: the service creates its certificate and its CA, and stores them in a Secret, or the certificate
// comes from files.
const (
	CASecret = "secret"
	CAFile   = "file"
)

const (
	// maxRequestBytes is the maximum size of a request.
	maxRequestBytes = 320 << 10
	// maxStreams is the maximum number of concurrent calls per connection. More calls wait in the client.
	maxStreams = 128
	// pingAfter is how long a connection can be silent before the server pings the client, which has pingTimeout to
	// answer.
	pingAfter, pingTimeout = time.Minute, 20 * time.Second
	// minPing is the minimum interval between pings of a client. Clients of grpc-go ping at most every 10 s.
	minPing = 10 * time.Second
	// handshakeTimeout is the maximum duration of the handshake of a new connection.
	handshakeTimeout = 10 * time.Second
	// maxAge is the age of a connection at which the client is asked to reconnect, so that new replicas get their share.
	// It also ends streams without a request, which can come from a pipe or a person.
	maxAge = 10 * time.Minute
	// ageGrace is how long calls can continue after the maximum age of their connection.
	ageGrace = time.Minute
	// maxOpenStreams is the maximum number of streams that watch health, and of those of reflection: they need no
	// permission.
	maxOpenStreams = 128
	// maxHeaderBytes is the maximum size of the headers of a call.
	maxHeaderBytes = 16 << 10
	// maxUnreadBytes is how much of a call the server takes before it knows the caller and reads the request. gRPC knows
	// no less.
	maxUnreadBytes = 64 << 10
	// maxIdle is how long a connection can live without calls. A call whose headers do not end is none.
	maxIdle = time.Minute
	// maxConnections and maxConnectionsEach are the maximum numbers of connections, in all and from one address.
	maxConnections, maxConnectionsEach = 1000, 250
	// maxUndecided and maxUndecidedEach are the maximum numbers of calls whose caller or first request is not permitted
	// yet, in all and from one address.
	maxUndecided, maxUndecidedEach = 384, 192
	// maxRequests and maxRequestsEach are the maximum numbers of unary calls whose requests are read and answered at a
	// time, in all and from one address. Others wait.
	maxRequests, maxRequestsEach = 64, 16
	// maxFields is the maximum number of fields of a request. The largest has 3 lists of 1,000 entries.
	maxFields = 4000
)

// AddFlags registers the flags with their defaults.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.BindAddress, "grpc-bind-address", ":8090", "`address` that serves gRPC")
	fs.StringVar(&o.CAMode, "ca-mode", CASecret, "source of the certificate: secret (created and rotated by the service "+
		"itself) or file")
	o.Secret.AddFlags(fs, "ringquery-tls")
	fs.StringVar(&o.CAConfigMap, "ca-config-map", "ringquery-ca",
		"`name` of the ConfigMap in --namespace that publishes the CA certificates under ca.crt, so that clients can verify "+
			"the server; for --ca-mode secret")
	fs.StringVar(&o.CertFile, "tls-cert-file", "", "PEM `file` with the server's certificate, followed by those of its "+
		"issuers; read again when it changes; for --ca-mode file")
	fs.StringVar(&o.KeyFile, "tls-private-key-file", "", "PEM `file` with the private key of --tls-cert-file; read again "+
		"when it changes; for --ca-mode file")
	fs.BoolVar(&o.Plaintext, "plaintext", false, "serve without TLS, for a machine or a network where that is acceptable")
	fs.IntVar(&o.MaxTotalStreams, "grpc-max-total-streams", 2000,
		"maximum number of concurrent `streams`, such as those of WatchRing, on all connections; more are refused")
	fs.DurationVar(&o.CallTimeout, "grpc-call-timeout", 30*time.Second, "maximum `time` of a unary call")
}

// Validate returns all errors in the flags, or nil. It does not read the files.
func (o *Options) Validate() error {
	var errs []error

	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	switch files := o.CertFile != "" || o.KeyFile != ""; {
	case o.CAMode != CASecret && o.CAMode != CAFile:
		fail("--ca-mode must be %s or %s, not %q", CASecret, CAFile, o.CAMode)
	case o.Plaintext && (files || o.CAMode == CAFile):
		fail("--plaintext excludes --ca-mode %s and its files: choose one", CAFile)
	case o.Plaintext:
	case o.CAMode == CAFile && (o.CertFile == "" || o.KeyFile == ""):
		fail("--tls-cert-file and --tls-private-key-file are required with --ca-mode %s", CAFile)
	case o.CAMode == CASecret && files:
		fail("--tls-cert-file and --tls-private-key-file require --ca-mode %s", CAFile)
	case o.CAMode == CASecret:
		errs = append(errs, o.Secret.Validate())

		for _, msg := range validation.IsDNS1123Subdomain(o.CAConfigMap) {
			fail("--ca-config-map %q is not a valid name of a ConfigMap: %s", o.CAConfigMap, msg)
		}
	}

	if o.BindAddress == "" || o.BindAddress == "0" {
		fail("--grpc-bind-address must be set: this service only serves gRPC")
	}

	if o.MaxTotalStreams < 1 {
		fail("--grpc-max-total-streams must be at least 1, not %d", o.MaxTotalStreams)
	}

	if o.CallTimeout < 10*time.Millisecond {
		fail("--grpc-call-timeout must be at least 10ms, not %s", o.CallTimeout)
	}

	return errors.Join(errs...)
}
