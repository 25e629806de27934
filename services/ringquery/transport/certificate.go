package transport

import (
	"fmt"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/clusterring/clusterring/services/internal/certs"
)

// setUpCertificate sets up the source of the serving certificate. The manager keeps it up to date, and, if the certificate is in a Secret,
// also the ConfigMap for clients.
func (s *Server) setUpCertificate(mgr manager.Manager) error {
	if s.Options.CAMode == CAFile {
		files, err := certs.NewFiles(s.Options.CertFile, s.Options.KeyFile, "", s.Clock)
		if err != nil {
			return fmt.Errorf("%w (--tls-cert-file, --tls-private-key-file)", err)
		}

		s.certificate, s.published = files, files.Ready

		return files.SetupWithManager(mgr)
	}

	secret := &certs.Secret{
		Client: mgr.GetClient(),
		Name:   types.NamespacedName{Namespace: s.Namespace, Name: s.Options.Secret.Name},
		Policy: s.Options.Secret.Policy(s.Name, append([]string{s.Name + "." + s.Namespace + ".svc"}, s.Options.Hosts...)...),
		Clock:  s.Clock,
	}
	if err := secret.SetupWithManager(mgr); err != nil {
		return err
	}

	authorities := &certs.ConfigMap{
		Client: mgr.GetClient(),
		Live:   mgr.GetAPIReader(),
		Name:   types.NamespacedName{Namespace: s.Namespace, Name: s.Options.CAConfigMap},
		Secret: secret,
	}
	s.certificate, s.published = secret, authorities.Ready

	return authorities.SetupWithManager(mgr)
}

// CertificateReady is a part of readiness. It returns nil if clients can verify the certificate now, or if the server uses no TLS. It is
// safe for concurrent use after SetupWithManager.
func (s *Server) CertificateReady(r *http.Request) error {
	if s.certificate == nil {
		return nil
	}

	for _, ready := range []func(*http.Request) error{s.certificate.Ready, s.published} {
		if err := ready(r); err != nil {
			return err
		}
	}

	current, err := s.certificate.GetCertificate(nil)
	if err != nil {
		return err
	}

	now, shown := s.Clock.Now(), current.Leaf
	if now.Before(shown.NotBefore) || now.After(shown.NotAfter) {
		return fmt.Errorf("the server's certificate is valid only from %s to %s",
			shown.NotBefore.UTC().Format(time.RFC3339), shown.NotAfter.UTC().Format(time.RFC3339))
	}

	return nil
}
