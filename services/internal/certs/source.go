package certs

import (
	"crypto/tls"
	"net/http"
	"slices"
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/manager"
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
