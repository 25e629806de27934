// Package transport serves gRPC: listening, TLS, limits, health, reflection, metrics, logs, and an orderly stop. It knows
// nothing of the services that it serves.
package transport

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Options are the flags of a gRPC server.
type Options struct {
	// BindAddress is host:port.
	BindAddress string
	// CertFile and KeyFile are PEM files; they are read again when they change.
	CertFile, KeyFile string
	// TLSSecret is the name of a Secret of type kubernetes.io/tls, or namespace/name; it is read again when it changes.
	TLSSecret string
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
}

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
	fs.StringVar(&o.CertFile, "tls-cert-file", "", "PEM `file` with the server's certificate, and those of its issuers after it; read again when it changes")
	fs.StringVar(&o.KeyFile, "tls-private-key-file", "", "PEM `file` with the private key of --tls-cert-file; read again when it changes")
	fs.StringVar(&o.TLSSecret, "tls-secret", "", "Secret of type kubernetes.io/tls with the server's certificate and key, as `[namespace/]name`, in --namespace if it names none; read again when it changes")
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

// validateTLS checks that one way to serve is chosen.
func (o *Options) validateTLS() error {
	files, chosen := o.CertFile != "" || o.KeyFile != "", 0
	for _, way := range []bool{files, o.TLSSecret != "", o.Plaintext} {
		if way {
			chosen++
		}
	}

	switch {
	case chosen > 1:
		return errors.New("of --tls-cert-file with --tls-private-key-file, --tls-secret, and --plaintext, choose one")
	case chosen == 0:
		return errors.New("choose how to serve: --tls-cert-file and --tls-private-key-file, --tls-secret, or --plaintext")
	case files && (o.CertFile == "" || o.KeyFile == ""):
		return errors.New("--tls-cert-file and --tls-private-key-file go together: set both")
	case o.TLSSecret != "":
		return validateSecret(o.secret("default"))
	}

	return nil
}

// secret returns the name of the Secret.
func (o *Options) secret(namespace string) types.NamespacedName {
	if in, name, ok := strings.Cut(o.TLSSecret, "/"); ok {
		return types.NamespacedName{Namespace: in, Name: name}
	}

	return types.NamespacedName{Namespace: namespace, Name: o.TLSSecret}
}

func validateSecret(secret types.NamespacedName) error {
	problems := append(validation.IsDNS1123Label(secret.Namespace), validation.IsDNS1123Subdomain(secret.Name)...)
	if len(problems) == 0 {
		return nil
	}

	return fmt.Errorf("--tls-secret %q is no name of a Secret, nor namespace/name: %s", secret, strings.Join(problems, "; "))
}
