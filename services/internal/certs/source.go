package certs

import (
	"crypto/tls"
	"net/http"
	"slices"
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// Source provides the serving certificate and the bundle of authorities. It is safe for concurrent use.
type Source interface {
	// SetupWith adds to the manager what keeps the source up to date. It runs in every replica.
	SetupWith(mgr manager.Manager) error
	// GetCertificate returns the current serving certificate, for tls.Config. It fails as long as there is none.
	GetCertificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error)
	// Bundle returns the PEM of the authorities that shall be trusted; nil if that is not known, or not yet.
	Bundle() []byte
	// Subscribe registers a function to be called when the bundle has changed.
	Subscribe(changed func())
	// Ready is a readiness check: it fails as long as there is nothing to serve with.
	Ready(r *http.Request) error
}

// subscribers are told of changes. The zero value is ready for use.
type subscribers struct {
	mu    sync.Mutex
	calls []func()
}

// Subscribe registers a function to be called when the bundle has changed, with no lock held.
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
