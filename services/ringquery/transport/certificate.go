package transport

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"sync/atomic"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// certificate is the one that the server shows, as tls.Config asks for it.
type certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)

// fromFiles returns the certificate of the files, which the manager watches.
func (s *Server) fromFiles(mgr manager.Manager) (certificate, error) {
	watcher, err := certwatcher.New(s.Options.CertFile, s.Options.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("read the certificate of --tls-cert-file and --tls-private-key-file: %w", err)
	}

	if err := mgr.Add(watcher); err != nil {
		return nil, fmt.Errorf("watch the certificate: %w", err)
	}

	return watcher.GetCertificate, nil
}

// fromSecret returns the certificate of the Secret, which the manager watches. The Secret may come later.
func (s *Server) fromSecret(ctx context.Context, mgr manager.Manager) (certificate, error) {
	secret := &secretCertificate{name: s.Options.secret(s.Namespace), log: s.Log}

	// A cache of its own holds no more than the one Secret, and needs no right to another.
	watched, err := cache.New(mgr.GetConfig(), cache.Options{
		HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(),
		ByObject: map[client.Object]cache.ByObject{&corev1.Secret{}: {Namespaces: map[string]cache.Config{
			secret.name.Namespace: {FieldSelector: fields.OneTermEqualSelector("metadata.name", secret.name.Name)},
		}}},
	})
	if err != nil {
		return nil, fmt.Errorf("watch Secret %s: %w", secret.name, err)
	}

	informer, err := watched.GetInformer(ctx, &corev1.Secret{})
	if err != nil {
		return nil, fmt.Errorf("watch Secret %s: %w", secret.name, err)
	}

	if _, err := informer.AddEventHandler(secret); err != nil {
		return nil, fmt.Errorf("watch Secret %s: %w", secret.name, err)
	}

	if err := mgr.Add(watched); err != nil {
		return nil, fmt.Errorf("watch Secret %s: %w", secret.name, err)
	}

	return secret.get, nil
}

// secretCertificate is the certificate in a Secret. What the Secret held last stays, if it is deleted or destroyed.
type secretCertificate struct {
	name    types.NamespacedName
	log     logr.Logger
	current atomic.Pointer[tls.Certificate]
}

var _ toolscache.ResourceEventHandler = (*secretCertificate)(nil)

func (c *secretCertificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if found := c.current.Load(); found != nil {
		return found, nil
	}

	return nil, fmt.Errorf("no usable certificate has been in Secret %s yet", c.name)
}

// OnAdd implements the handler.
func (c *secretCertificate) OnAdd(object any, _ bool) { c.load(object) }

// OnUpdate implements the handler.
func (c *secretCertificate) OnUpdate(_, object any) { c.load(object) }

// OnDelete implements the handler.
func (c *secretCertificate) OnDelete(any) {
	c.log.Info("Secret of the certificate is gone; going on with what it held", "secret", c.name.String())
}

func (c *secretCertificate) load(object any) {
	secret, ok := object.(*corev1.Secret)
	if !ok {
		return
	}

	loaded, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		c.log.Error(err, "Secret holds no usable certificate; going on with what it held before", "secret", c.name.String(),
			"keys", []string{corev1.TLSCertKey, corev1.TLSPrivateKeyKey})

		return
	}

	c.current.Store(&loaded)
	c.log.Info("Certificate read", "secret", c.name.String(), "expires", loaded.Leaf.NotAfter)
}

// leaf returns the certificate itself, without its issuers.
func leaf(of *tls.Certificate) (*x509.Certificate, error) {
	if of.Leaf != nil {
		return of.Leaf, nil
	}

	parsed, err := x509.ParseCertificate(of.Certificate[0])
	if err != nil {
		return nil, fmt.Errorf("read the certificate: %w", err)
	}

	return parsed, nil
}
