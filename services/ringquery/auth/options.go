package auth

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/spf13/pflag"
)

// Values of [Options.Mode].
const (
	// ModeNone allows all queries.
	ModeNone = "none"
	// ModeKubernetes allows queries of users whom the API server authenticates and authorizes.
	ModeKubernetes = "kubernetes"
)

// audience is the default audience of tokens. The API server does not accept tokens for it.
const audience = "ringquery"

// maxTTL limits how long users can use a permission that they have lost.
const maxTTL = time.Hour

// Options are the flags for authentication and authorization.
type Options struct {
	// Mode is ModeNone or ModeKubernetes.
	Mode string
	// Audiences are those for which a token must be valid. Empty: those of the API server.
	Audiences []string
	// TTL is how long answers of the API server about tokens and permissions are cached. Zero: they are not cached.
	TTL time.Duration
}

// AddFlags registers the flags with their defaults.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.Mode, "authentication", ModeKubernetes, "`mode`: kubernetes (the API server authenticates users, who "+
		"need permission to get clusterrings/diagnostics) or none (everybody who reaches the address gets answers)")
	fs.StringSliceVar(&o.Audiences, "token-audience", []string{audience},
		"`audience` for which a token must be valid; may be repeated. An empty value is the audience of the API server: "+
			"everyone who takes over this service can use such tokens there")
	fs.DurationVar(&o.TTL, "access-cache-ttl", time.Minute, "`time` for which answers of the API server about tokens and "+
		"permissions are cached, refusals for at most 5s; 0 disables the cache")
}

// Validate returns all errors in the flags, or nil. plaintext is true if the server has no TLS, and address is where it
// listens: tokens must not travel over a network in the clear.
func (o *Options) Validate(plaintext bool, address string) error {
	var errs []error

	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	switch {
	case o.Mode != ModeNone && o.Mode != ModeKubernetes:
		fail("--authentication must be %s or %s, not %q", ModeKubernetes, ModeNone, o.Mode)
	case o.Mode == ModeNone && !slices.Equal(o.Audiences, []string{audience}):
		fail("--token-audience has no effect with --authentication none: choose one")
	case o.Mode == ModeKubernetes && plaintext && !loopback(address):
		fail("--plaintext would send tokens over the network in the clear: serve with TLS, or only on 127.0.0.1 by "+
			"--grpc-bind-address, or answer everybody with --authentication %s", ModeNone)
	}

	for _, a := range o.Audiences {
		if a == "" {
			fail("--token-audience must not be empty")
		}
	}

	if o.TTL < 0 || o.TTL > maxTTL {
		fail("--access-cache-ttl must be from 0 to %s, not %s", maxTTL, o.TTL)
	}

	return errors.Join(errs...)
}

// loopback reports whether an address can be reached only from this machine.
func loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}

	ip, err := netip.ParseAddr(host)

	return host == "localhost" || err == nil && ip.IsLoopback()
}
