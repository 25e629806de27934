// Package certs maintains the serving certificate of a service, and the CA certificates that clients verify it with.
//
// [Secret] creates both itself: every replica reads one Secret, serves its certificate, and creates or replaces what is
// missing or old. [Policy.Next], a pure function, decides what to do. Writes depend on the Secret's resourceVersion: if
// several replicas see the same need, one succeeds, and the others use its result. No replica waits for a leader: a
// fresh installation is ready as soon as its first replica has written the Secret. It can also publish the CA
// certificates to clients that read them in the cluster, in a ConfigMap. [Files] reads the certificate from files that
// somebody else maintains.
//
// # Invariants
//
//  1. A certificate is served only after it has been in the Secret, and after its CA has been in the bundle for
//     [Policy.Overlap], unless no other certificate works.
//  2. The CA of a served certificate stays in the bundle.
//  3. A Secret that is deleted or corrupted is replaced in the same gradual way, as long as one replica remembers it.
//     To request a rotation, delete the Secret.
//  4. A ConfigMap never gets a bundle that is older than its current one, whichever replica writes it.
//
// # Rejected alternative
//
// github.com/open-policy-agent/cert-controller also maintains such a Secret. However, it serves from files, and so
// waits until the kubelet refreshes a mounted Secret. It injects the CA into a fixed list of webhook configurations,
// but ours come and go with rings. It replaces a CA immediately, without a time in which both are trusted, so calls
// fail in between.
package certs

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// Source provides the serving certificate and the bundle of CA certificates. It is safe for concurrent use.
type Source interface {
	// SetupWithManager adds the controllers that keep the source up to date to the manager. They run in every replica.
	SetupWithManager(mgr manager.Manager) error
	// GetCertificate returns the current serving certificate, for tls.Config. It fails while there is none.
	GetCertificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error)
	// Bundle returns the PEM of the trusted CA certificates; nil if they are not known (yet).
	Bundle() []byte
	// Subscribe registers a function that is called when the bundle has changed.
	Subscribe(changed func())
	// Ready is a readiness check: it fails while there is no certificate to serve.
	Ready(r *http.Request) error
}

// subscribers are notified of changes. The zero value is ready to use.
type subscribers struct {
	mu    sync.Mutex
	calls []func()
}

// Subscribe registers a function that is called, without a lock held, when the bundle has changed.
func (s *subscribers) Subscribe(changed func()) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.calls = append(s.calls, changed)
}

func (s *subscribers) notify() {
	s.mu.Lock()
	calls := slices.Clone(s.calls)
	s.mu.Unlock()

	for _, call := range calls {
		call()
	}
}

// Secret is a [Source] that maintains a Secret. Its exported fields must be set before use.
type Secret struct {
	// Client writes the Secret and the ConfigMap, and reads them from a cache that contains nothing else.
	Client client.Client
	// Name is the name of the Secret.
	Name types.NamespacedName
	// ConfigMap is the name of the ConfigMap that publishes the bundle under the key ca.crt: unlike the Secret, everybody
	// may read it. It is in the namespace of the Secret. Empty: the bundle is not published.
	ConfigMap string
	// Live reads the ConfigMap and the Secret from the API server. It is only needed with a ConfigMap.
	Live client.Reader
	// Policy decides.
	Policy Policy
	Clock  clock.PassiveClock

	subscribers

	current   atomic.Pointer[Material]
	published atomic.Bool // whether the ConfigMap has contained the bundle once
}

var _ Source = (*Secret)(nil)

// SetupWithManager implements [Source].
func (s *Secret) SetupWithManager(mgr manager.Manager) error {
	look := reconcile.Request{NamespacedName: s.Name}
	begin := func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		queue.Add(look) // without the Secret, there would be no event to start with

		return nil
	}

	b := builder.ControllerManagedBy(mgr).
		Named("certificates").
		For(&corev1.Secret{}).
		WatchesRawSource(source.Func(begin)).
		WithOptions(controller.Options{
			NeedLeaderElection: new(false),
			RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](staleRetry,
				10*time.Second),
		})

	if s.ConfigMap != "" {
		b.Watches(&corev1.ConfigMap{}, handler.EnqueueRequestsFromMapFunc(
			func(context.Context, client.Object) []reconcile.Request { return []reconcile.Request{look} }))
	}

	if err := b.Complete(s); err != nil {
		return fmt.Errorf("maintain Secret %s: %w", s.Name, err)
	}

	return nil
}

// Reconcile serves the content of the Secret, changes the Secret if the policy requires it, and publishes the bundle.
func (s *Secret) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	if req.NamespacedName != s.Name {
		return reconcile.Result{}, nil
	}

	result, err := s.maintain(ctx)
	if s.ConfigMap == "" {
		return result, err
	}

	stale, published := s.publish(ctx)
	if err := errors.Join(err, published); err != nil {
		return reconcile.Result{}, err
	}

	if stale {
		result.RequeueAfter = staleRetry
	}

	return result, nil
}

func (s *Secret) maintain(ctx context.Context) (reconcile.Result, error) {
	secret := &corev1.Secret{}
	if err := s.Client.Get(ctx, s.Name, secret); err != nil && !apierrors.IsNotFound(err) {
		return reconcile.Result{}, fmt.Errorf("read Secret %s: %w", s.Name, err)
	}

	now := s.Clock.Now()
	m := s.remember(now, parse(secret.Data))

	d := s.Policy.Next(now, m)
	if d.Action == Keep {
		s.load(ctx, m)
		return reconcile.Result{RequeueAfter: d.CheckAfter}, nil
	}

	m, err := s.Policy.apply(now, m, d)
	if err != nil {
		return reconcile.Result{}, err
	}

	err = s.write(ctx, secret, m)
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return reconcile.Result{RequeueAfter: staleRetry}, nil
	} else if err != nil {
		return reconcile.Result{}, err
	}

	log.FromContext(ctx).Info("Certificates renewed", "secret", s.Name.String(), "action", string(d.Action), "reason",
		d.Reason)
	s.load(ctx, m)

	return reconcile.Result{RequeueAfter: staleRetry}, nil
}

// remember replaces unusable material with what is served now.
func (s *Secret) remember(now time.Time, m Material) Material {
	served := s.current.Load()
	if m.CA != nil || served == nil || s.Policy.unusableCert(now, m) == "" || s.Policy.unusableCert(now, *served) != "" {
		return m
	}

	return served.withoutCAKey()
}

// write stores the material in the Secret that was read, or in a new Secret if there was none.
func (s *Secret) write(ctx context.Context, secret *corev1.Secret, m Material) error {
	secret = secret.DeepCopy()
	secret.Type = cmp.Or(secret.Type, corev1.SecretTypeTLS)

	if secret.Data == nil {
		secret.Data = map[string][]byte{}
	}

	maps.Copy(secret.Data, m.data())

	if err := put(ctx, s.Client, s.Name, secret); err != nil {
		return fmt.Errorf("write Secret %s: %w", s.Name, err)
	}

	return nil
}

// put updates an object that was read, or creates it if there was none. It returns the API's own errors.
func put(ctx context.Context, c client.Client, name types.NamespacedName, obj client.Object) error {
	if obj.GetResourceVersion() != "" {
		return c.Update(ctx, obj) //nolint:wrapcheck // the caller adds what it was doing
	}

	obj.SetNamespace(name.Namespace)
	obj.SetName(name.Name)

	return c.Create(ctx, obj) //nolint:wrapcheck // the caller adds what it was doing
}

// load starts to serve the material, which has been in the Secret.
func (s *Secret) load(ctx context.Context, m Material) {
	before := s.current.Swap(&m)
	if before == nil || !before.Cert.Equal(m.Cert) {
		log.FromContext(ctx).Info("Serving a certificate", "secret", s.Name.String(), "expires", m.Cert.NotAfter)
	}

	if before == nil || !bytes.Equal(before.bundlePEM(), m.bundlePEM()) {
		s.notify()
	}
}

// GetCertificate implements [Source].
func (s *Secret) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	m := s.current.Load()
	if m == nil {
		return nil, s.missing()
	}

	return &m.pair, nil
}

// Bundle implements [Source].
func (s *Secret) Bundle() []byte {
	m := s.current.Load()
	if m == nil {
		return nil
	}

	return m.bundlePEM()
}

// Ready implements [Source]. It also fails until the ConfigMap has contained the bundle once. A ConfigMap that is lost
// later is restored, and does not affect readiness.
func (s *Secret) Ready(*http.Request) error {
	switch {
	case s.current.Load() == nil:
		return s.missing()
	case s.ConfigMap != "" && !s.published.Load():
		return fmt.Errorf("the CA certificates have not been written to ConfigMap %s yet", s.ConfigMap)
	}

	return nil
}

func (s *Secret) missing() error {
	return fmt.Errorf("Secret %s has not been read or created yet", s.Name)
}

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
	fs.StringVar(&o.Name, "tls-secret", name,
		"`name` of the Secret in --namespace that contains the CA and the certificate; for --ca-mode secret")
	fs.DurationVar(&o.CALifetime, "tls-ca-lifetime", 365*24*time.Hour, "`time` until a CA expires; for --ca-mode secret")
	fs.DurationVar(&o.CertLifetime, "tls-cert-lifetime", 90*24*time.Hour,
		"`time` until a serving certificate expires, at most a third of --tls-ca-lifetime; for --ca-mode secret")
}

// Validate returns everything that is wrong with the flags, or nil.
func (o *SecretOptions) Validate() error {
	var errs []error

	for _, msg := range validation.IsDNS1123Subdomain(o.Name) {
		errs = append(errs, fmt.Errorf("--tls-secret %q is no name of a Secret: %s", o.Name, msg))
	}

	if o.CertLifetime <= 0 || o.CALifetime < 3*o.CertLifetime {
		errs = append(errs, fmt.Errorf("--tls-ca-lifetime (%s) must be at least three times --tls-cert-lifetime (%s), and "+
			"both greater than 0",
			o.CALifetime, o.CertLifetime))
	}

	return errors.Join(errs...)
}

// Policy returns the policy for the service's certificates with these hosts. A new CA is published for an hour before
// it signs, or for a tenth of a certificate's lifetime if that is less.
func (o *SecretOptions) Policy(service string, hosts ...string) Policy {
	return Policy{
		Service:      service,
		CALifetime:   o.CALifetime,
		CertLifetime: o.CertLifetime,
		Overlap:      min(maxOverlap, o.CertLifetime/10),
		Hosts:        hosts,
	}
}

// staleRetry is how long to wait for the cache after somebody else has written the object first.
const staleRetry = 100 * time.Millisecond
