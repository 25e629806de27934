package certs

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"
)

// maxOverlap is how long a new CA is published before it signs, unless certificates live too short a time for that.
const maxOverlap = time.Hour

// SecretOptions are the flags of a service that creates its certificates itself.
type SecretOptions struct {
	// Name is the name of the Secret.
	Name string
	// CALifetime and CertLifetime are the fields of [Policy].
	CALifetime, CertLifetime time.Duration
}

// AddFlags registers the flags with their defaults; name is the default of --tls-secret.
func (o *SecretOptions) AddFlags(fs *pflag.FlagSet, name string) {
	fs.StringVar(&o.Name, "tls-secret", name, "`name` of the Secret in --namespace that contains the CA and the certificate; for --ca-mode secret")
	fs.DurationVar(&o.CALifetime, "tls-ca-lifetime", 365*24*time.Hour, "`time` until a CA expires; for --ca-mode secret")
	fs.DurationVar(&o.CertLifetime, "tls-cert-lifetime", 90*24*time.Hour, "`time` until a serving certificate expires, at most a third of --tls-ca-lifetime; for --ca-mode secret")
}

// Validate returns everything that is wrong with the flags, or nil.
func (o *SecretOptions) Validate() error {
	var errs []error

	for _, msg := range validation.IsDNS1123Subdomain(o.Name) {
		errs = append(errs, fmt.Errorf("--tls-secret %q is no name of a Secret: %s", o.Name, msg))
	}

	if o.CertLifetime <= 0 || o.CALifetime < 3*o.CertLifetime {
		errs = append(errs, fmt.Errorf("--tls-ca-lifetime (%s) must be at least three times --tls-cert-lifetime (%s), and both greater than 0",
			o.CALifetime, o.CertLifetime))
	}

	return errors.Join(errs...)
}

// Policy returns the policy for the service's certificates with these hosts. A new CA is published for an hour before it signs,
// or for a tenth of a certificate's lifetime if that is less.
func (o *SecretOptions) Policy(service string, hosts ...string) Policy {
	return Policy{
		Service:      service,
		CALifetime:   o.CALifetime,
		CertLifetime: o.CertLifetime,
		Overlap:      min(maxOverlap, o.CertLifetime/10),
		Hosts:        hosts,
	}
}
