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

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
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
	caFile        = "file"
	caCertManager = "cert-manager"
)

// minConnectionAge keeps handshakes rare against calls.
const minConnectionAge = 100 * time.Millisecond

// flags are the service's own flags.
type flags struct {
	bindAddress   string
	connectionAge time.Duration

	mode             string
	serviceName      string
	serviceNamespace string
	servicePort      int32
	url              string

	caMode       string
	secret       certs.SecretOptions
	caBundleFile string
	injectCAFrom string
	certFile     string
	keyFile      string

	rebalancer string
}

func (f *flags) add(fs *pflag.FlagSet) {
	fs.StringVar(&f.bindAddress, "webhook-bind-address", ":9443", "`address` that serves the webhook with TLS")

	fs.DurationVar(&f.connectionAge, "max-connection-age", time.Second, "`time` after which an API server is asked to connect again, plus up to half of it at random; an API server sends all calls over one connection, so reconnecting spreads them over the replicas; 0 for never")

	fs.StringVar(&f.mode, "webhook-mode", modeService, "how API servers reach the webhook: service or url")
	fs.StringVar(&f.serviceName, "webhook-service-name", name, "`name` of the Service in front of the webhook; for --webhook-mode service")
	fs.StringVar(&f.serviceNamespace, "webhook-service-namespace", "", "`namespace` of that Service; default: --namespace")
	fs.Int32Var(&f.servicePort, "webhook-service-port", 443, "`port` of that Service")
	fs.StringVar(&f.url, "webhook-url", "", "base `URL` of the webhook, such as https://assigner.example.com:9443; for --webhook-mode url")

	fs.StringVar(&f.caMode, "ca-mode", caSecret, "where certificates come from: secret (created and rotated by the service itself), file, or cert-manager")
	f.secret.AddFlags(fs, "assigner-tls")
	fs.StringVar(&f.caBundleFile, "ca-bundle-file", "", "PEM `file` with the CA certificates that API servers verify the webhook with; for --ca-mode file")
	fs.StringVar(&f.injectCAFrom, "cert-manager-inject-ca-from", "", "cert-manager's Certificate, as `namespace/name`, whose CA is injected into the webhook configuration; for --ca-mode cert-manager")
	fs.StringVar(&f.certFile, "tls-cert-file", "", "PEM `file` of the serving certificate, read again when it changes; for --ca-mode file and cert-manager")
	fs.StringVar(&f.keyFile, "tls-private-key-file", "", "PEM `file` of the private key of the serving certificate")

	fs.StringVar(&f.rebalancer, "rebalancer-username", "system:serviceaccount:"+v1alpha1.SystemNamespace+":rebalancer",
		"`user` of the rebalancer; the API server does not call the webhook for its writes; empty for none")
}

// validate returns everything that is wrong with the flags, or nil.
func (f *flags) validate() error {
	var errs []error

	if _, _, err := f.address(); err != nil {
		errs = append(errs, err)
	}

	if f.connectionAge < 0 || f.connectionAge > 0 && f.connectionAge < minConnectionAge {
		errs = append(errs, fmt.Errorf("--max-connection-age must be 0 or at least %s, not %s", minConnectionAge, f.connectionAge))
	}

	switch f.mode {
	case modeService:
		errs = append(errs, f.validateService())
	case modeURL:
		errs = append(errs, f.validateURL())
	default:
		errs = append(errs, fmt.Errorf("--webhook-mode must be %s or %s, not %q", modeService, modeURL, f.mode))
	}

	switch f.caMode {
	case caSecret:
		errs = append(errs, f.validateSecret())
	case caFile:
		errs = append(errs, f.validateFiles(), required("ca-bundle-file", f.caBundleFile, f.caMode))
	case caCertManager:
		errs = append(errs, f.validateFiles())
		if parts := strings.Split(f.injectCAFrom, "/"); len(parts) != 2 || parts[0] == "" || parts[1] == "" {
			errs = append(errs, fmt.Errorf("--cert-manager-inject-ca-from must name a Certificate as namespace/name, not %q", f.injectCAFrom))
		}
	default:
		errs = append(errs, fmt.Errorf("--ca-mode must be %s, %s or %s, not %q", caSecret, caFile, caCertManager, f.caMode))
	}

	return errors.Join(errs...)
}

// address splits the address of the webhook. Port 0 would let the system choose one that nobody can know.
func (f *flags) address() (host string, port int, err error) {
	host, number, err := net.SplitHostPort(f.bindAddress)
	if err != nil {
		return "", 0, fmt.Errorf("--webhook-bind-address %q is no address: want host:port or :port", f.bindAddress)
	}

	port, err = strconv.Atoi(number)
	if err != nil || port < 1 || port > 65535 {
		return "", 0, fmt.Errorf("--webhook-bind-address %q: port must be a number from 1 to 65535", f.bindAddress)
	}

	return host, port, nil
}

func (f *flags) validateService() error {
	var errs []error

	for _, msg := range validation.IsDNS1035Label(f.serviceName) {
		errs = append(errs, fmt.Errorf("--webhook-service-name %q is no name of a Service: %s", f.serviceName, msg))
	}

	if f.servicePort < 1 || f.servicePort > 65535 {
		errs = append(errs, fmt.Errorf("--webhook-service-port must be from 1 to 65535, not %d", f.servicePort))
	}

	if f.url != "" {
		errs = append(errs, fmt.Errorf("--webhook-url is for --webhook-mode %s", modeURL))
	}

	return errors.Join(errs...)
}

// validateURL asks for what the API server asks for.
func (f *flags) validateURL() error {
	u, err := url.Parse(f.url)
	if err != nil || u.Scheme != "https" || u.Hostname() == "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return fmt.Errorf("--webhook-url must be like https://host:port, not %q", f.url)
	}

	return nil
}

func (f *flags) validateSecret() error {
	errs := []error{f.secret.Validate()}

	if f.certFile != "" || f.keyFile != "" {
		errs = append(errs, fmt.Errorf("--tls-cert-file and --tls-private-key-file are for --ca-mode %s and %s", caFile, caCertManager))
	}

	return errors.Join(errs...)
}

func (f *flags) validateFiles() error {
	return errors.Join(required("tls-cert-file", f.certFile, f.caMode), required("tls-private-key-file", f.keyFile, f.caMode))
}

func required(flag, value, mode string) error {
	if value == "" {
		return fmt.Errorf("--%s is required with --ca-mode %s", flag, mode)
	}

	return nil
}

// target returns how API servers reach the webhook; namespace is the default of the Service's.
func (f *flags) target(namespace string) registration.Target {
	t := registration.Target{RebalancerUsername: f.rebalancer}

	if f.caMode == caCertManager {
		t.InjectCAFrom = f.injectCAFrom
	}

	if f.mode == modeURL {
		t.URL = f.url
		return t
	}

	if f.serviceNamespace != "" {
		namespace = f.serviceNamespace
	}

	t.Service = admissionregistrationv1.ServiceReference{Namespace: namespace, Name: f.serviceName, Port: new(f.servicePort)}

	return t
}

// policy returns how certificates are made for the target.
func (f *flags) policy(t registration.Target) certs.Policy {
	host := t.Service.Name + "." + t.Service.Namespace + ".svc"
	if u, err := url.Parse(t.URL); t.URL != "" && err == nil { // validated
		host = u.Hostname()
	}

	return f.secret.Policy(name, host)
}
