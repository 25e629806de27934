package assigner

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/services/assigner/registration"
	"github.com/clusterring/clusterring/services/internal/certs"
)

// Values of --webhook-mode.
const (
	modeService = "service"
	modeURL     = "url"
)

// Values of --ca-mode.
const (
	caSecret      = "secret"
	caCertManager = "cert-manager"
)

// options are the values of the service's own flags.
type options struct {
	bindAddress  string
	clientCAFile string

	mode        string
	serviceName string
	url         string
	timeout     time.Duration

	caMode       string
	secret       certs.SecretOptions
	injectCAFrom string
	certFile     string
	keyFile      string

	rebalancer string
}

func (o *options) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.bindAddress, "webhook-bind-address", ":9443", "`address` that serves the webhook with TLS")

	fs.StringVar(&o.clientCAFile, "client-ca-file", "",
		"PEM `file` with the CA certificates of API servers, read again when it changes: everyone who calls the webhook needs "+
			"a client certificate that one of them has signed. By default, everyone who knows the path in a webhook configuration "+
			"may call")

	fs.StringVar(&o.mode, "webhook-mode", modeService, "how API servers reach the webhook: service or url")
	fs.StringVar(&o.serviceName, "webhook-service-name", name,
		"`name` of the Service in front of the webhook, in --namespace and with port 443; for --webhook-mode service")
	fs.StringVar(&o.url, "webhook-url", "",
		"base `URL` of the webhook, such as https://assigner.example.com:9443; for --webhook-mode url")

	fs.DurationVar(&o.timeout, "webhook-timeout", time.Second,
		"`time` that a write waits for an assigner that does not answer, in whole seconds up to 30s; API servers call the "+
			"webhooks of several rings one after the other, so a write waits for each. The policies of deploy/base/guard "+
			"admit up to 5s")

	fs.StringVar(&o.caMode, "ca-mode", caSecret,
		"where certificates come from: secret (created and rotated by the service itself) or cert-manager")
	o.secret.AddFlags(fs, "assigner-tls")
	fs.StringVar(&o.injectCAFrom, "cert-manager-inject-ca-from", "",
		"cert-manager's Certificate, as `namespace/name`, whose CA is injected into the webhook configuration; for "+
			"--ca-mode cert-manager")
	fs.StringVar(&o.certFile, "tls-cert-file", "",
		"PEM `file` of the serving certificate, read again when it changes; for --ca-mode cert-manager")
	fs.StringVar(&o.keyFile, "tls-private-key-file", "", "PEM `file` of the private key of the serving certificate")

	fs.StringVar(&o.rebalancer, "rebalancer-username", "system:serviceaccount:"+contract.SystemNamespace+":rebalancer",
		"`user` of the rebalancer, which gives objects to other shards; the API server does not call the webhook for its "+
			"writes")
}

// validate returns everything that is wrong with the flags, or nil.
func (o *options) validate() error {
	var errs []error

	// Port 0 would let the system choose one that nobody can know.
	_, number, err := net.SplitHostPort(o.bindAddress)
	if port, wrong := strconv.ParseUint(number, 10, 16); err != nil || wrong != nil || port == 0 {
		errs = append(errs, fmt.Errorf("--webhook-bind-address %q is no address: want host:port or :port, with a port from 1 "+
			"to 65535", o.bindAddress))
	}

	if o.timeout < time.Second || o.timeout > 30*time.Second || o.timeout%time.Second != 0 {
		errs = append(errs, fmt.Errorf("--webhook-timeout must be from 1s to 30s, in whole seconds, not %s", o.timeout))
	}

	if o.rebalancer == "" {
		errs = append(errs, errors.New("--rebalancer-username must not be empty: the assigner would undo the writes of "+
			"the rebalancer"))
	}

	switch o.mode {
	case modeService:
		for _, msg := range validation.IsDNS1035Label(o.serviceName) {
			errs = append(errs, fmt.Errorf("--webhook-service-name %q is no name of a Service: %s", o.serviceName, msg))
		}

		if o.url != "" {
			errs = append(errs, fmt.Errorf("--webhook-url is for --webhook-mode %s", modeURL))
		}
	case modeURL:
		errs = append(errs, o.validateURL())
	default:
		errs = append(errs, fmt.Errorf("--webhook-mode must be %s or %s, not %q", modeService, modeURL, o.mode))
	}

	switch o.caMode {
	case caSecret:
		errs = append(errs, o.secret.Validate())
		if o.certFile != "" || o.keyFile != "" {
			errs = append(errs, fmt.Errorf("--tls-cert-file and --tls-private-key-file are for --ca-mode %s", caCertManager))
		}
	case caCertManager:
		if o.certFile == "" || o.keyFile == "" {
			errs = append(errs, fmt.Errorf("--tls-cert-file and --tls-private-key-file are required with --ca-mode %s",
				o.caMode))
		}

		if parts := strings.Split(o.injectCAFrom, "/"); len(parts) != 2 || parts[0] == "" || parts[1] == "" {
			errs = append(errs, fmt.Errorf("--cert-manager-inject-ca-from must name a Certificate as namespace/name, not %q",
				o.injectCAFrom))
		}
	default:
		errs = append(errs, fmt.Errorf("--ca-mode must be %s or %s, not %q", caSecret, caCertManager, o.caMode))
	}

	return errors.Join(errs...)
}

// validateURL asks for what the API server asks for.
func (o *options) validateURL() error {
	u, err := url.Parse(o.url)
	if err != nil || u.Scheme != "https" || u.Hostname() == "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return fmt.Errorf("--webhook-url must be like https://host:port, not %q", o.url)
	}

	return nil
}

// servicePort is the port of the Service in front of the webhook.
const servicePort int32 = 443

// target returns how API servers reach the webhook; namespace is the Service's.
func (o *options) target(namespace string) registration.Target {
	_, port, _ := net.SplitHostPort(o.bindAddress) // validated
	t := registration.Target{RebalancerUsername: o.rebalancer, TimeoutSeconds: int32(o.timeout / time.Second), Port: port}

	if o.caMode == caCertManager {
		t.InjectCAFrom = o.injectCAFrom
	}

	if o.mode == modeURL {
		t.URL = o.url
		return t
	}

	t.Service = admissionregistrationv1.ServiceReference{Namespace: namespace, Name: o.serviceName,
		Port: new(servicePort)}

	return t
}

// policy returns how certificates are made for the target.
func (o *options) policy(t registration.Target) certs.Policy {
	host := t.Service.Name + "." + t.Service.Namespace + ".svc"
	if u, err := url.Parse(t.URL); t.URL != "" && err == nil { // validated
		host = u.Hostname()
	}

	return o.secret.Policy(name, host)
}
