package transport

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/clusterring/clusterring/services/internal/certs"
)

// certificate is the serving certificate.
type certificate struct {
	// get is the callback for tls.Config.
	get func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// ready are checks that must pass before clients can verify the certificate.
	ready []func(*http.Request) error
}

// fromFiles returns the certificate in the files, which the manager watches.
func (s *Server) fromFiles(mgr manager.Manager) (*certificate, error) {
	source, err := certs.NewFiles(s.Options.CertFile, s.Options.KeyFile, "", s.Clock)
	if err != nil {
		return nil, fmt.Errorf("%w (--tls-cert-file, --tls-private-key-file)", err)
	}

	if err := source.SetupWithManager(mgr); err != nil {
		return nil, err
	}

	return &certificate{get: source.GetCertificate}, nil
}

// fromSecret returns the certificate in the Secret. The manager maintains the Secret, and the ConfigMap for clients.
func (s *Server) fromSecret(mgr manager.Manager) (*certificate, error) {
	secret := &certs.Secret{
		Client: mgr.GetClient(),
		Name:   types.NamespacedName{Namespace: s.Namespace, Name: s.Options.Secret.Name},
		Policy: s.Options.Secret.Policy(s.Name, append([]string{s.Name + "." + s.Namespace + ".svc"}, s.Options.Hosts...)...),
		Clock:  s.Clock,
	}
	if err := secret.SetupWithManager(mgr); err != nil {
		return nil, err
	}

	authorities := &certs.ConfigMap{
		Client: mgr.GetClient(),
		Live:   mgr.GetAPIReader(),
		Name:   types.NamespacedName{Namespace: s.Namespace, Name: s.Options.CAConfigMap},
		Secret: secret,
	}
	if err := authorities.SetupWithManager(mgr); err != nil {
		return nil, err
	}

	return &certificate{get: secret.GetCertificate, ready: []func(*http.Request) error{secret.Ready, authorities.Ready}}, nil
}

// check returns nil if clients can verify the certificate at the given time.
func (c *certificate) check(now time.Time, r *http.Request) error {
	for _, ready := range c.ready {
		if err := ready(r); err != nil {
			return err
		}
	}

	current, err := c.get(nil)
	if err != nil {
		return err
	}

	shown := current.Leaf
	if now.Before(shown.NotBefore) || now.After(shown.NotAfter) {
		return fmt.Errorf("the server's certificate is valid only from %s to %s",
			shown.NotBefore.UTC().Format(time.RFC3339), shown.NotAfter.UTC().Format(time.RFC3339))
	}

	return nil
}
