package auth

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/spf13/pflag"
)

// Values of [Options.Mode].
const (
	// ModeNone lets everybody ask everything.
	ModeNone = "none"
	// ModeKubernetes lets those ask whom the API server knows and gives the right to.
	ModeKubernetes = "kubernetes"
)

// maxTTL bounds how long somebody who has lost a right may still use it.
const maxTTL = time.Hour

// Options are the flags that say who may ask.
type Options struct {
	// Mode is ModeNone or ModeKubernetes.
	Mode string
	// ClientCAFile is a PEM file with the authorities of client certificates. Empty: client certificates are not asked for.
	ClientCAFile string
	// Audiences that a token must be for. Empty: those of the API server.
	Audiences []string
	// TTL is how long an answer of the API server about a token or a right is used again. Zero: it is asked every time.
	TTL time.Duration
}

// AddFlags registers the flags with their defaults.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.Mode, "authentication", ModeKubernetes, "`who` may ask: kubernetes (users that the API server knows, with the right to get clusterrings/diagnostics) or none (everybody who reaches the address)")
	fs.StringVar(&o.ClientCAFile, "client-ca-file", "", "PEM `file` with the authorities of client certificates, whose common name is the user and whose organizations are the groups; read again when it changes. By default only tokens are taken")
	fs.StringSliceVar(&o.Audiences, "token-audience", nil, "`audience` that a token must be for; may be repeated. By default that of the API server")
	fs.DurationVar(&o.TTL, "access-cache-ttl", time.Minute, "`time` for which an answer of the API server about a token or a right is used again, a refusal at most 5s; 0 to ask every time")
}

// Validate returns everything that is wrong with the flags, or nil. plaintext says that the server has no TLS, and address is
// where it listens: tokens must not travel over a network in the clear.
func (o *Options) Validate(plaintext bool, address string) error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	switch {
	case o.Mode != ModeNone && o.Mode != ModeKubernetes:
		fail("--authentication must be %s or %s, not %q", ModeKubernetes, ModeNone, o.Mode)
	case o.Mode == ModeNone && (o.ClientCAFile != "" || len(o.Audiences) > 0):
		fail("--client-ca-file and --token-audience say who a caller is, and --authentication none does not ask: choose one")
	case o.Mode == ModeKubernetes && plaintext && !loopback(address):
		fail("--plaintext would send tokens over the network in the clear: serve with TLS, or on 127.0.0.1 alone by "+
			"--grpc-bind-address, or choose --authentication %s and let everybody ask", ModeNone)
	case plaintext && o.ClientCAFile != "":
		fail("--client-ca-file needs TLS, and --plaintext has none: choose one")
	}

	for _, audience := range o.Audiences {
		if audience == "" {
			fail("--token-audience must not be empty")
		}
	}

	if o.TTL < 0 || o.TTL > maxTTL {
		fail("--access-cache-ttl must be from 0 to %s, not %s", maxTTL, o.TTL)
	}

	return errors.Join(errs...)
}

// loopback reports whether an address can be reached from this machine alone.
func loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}

	ip, err := netip.ParseAddr(host)

	return host == "localhost" || err == nil && ip.IsLoopback()
}
