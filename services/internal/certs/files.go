package certs

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"os"

	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// Files is a [Source] that reads files and follows their changes. Create it with [NewFiles].
type Files struct {
	subscribers

	certificate *certwatcher.CertWatcher
	bundle      *BundleFile // nil if there is none
}

var _ Source = (*Files)(nil)

// NewFiles reads the serving certificate with its private key and, unless bundlePath is empty, the bundle. All files are PEM. It
// returns an error that names the file that is missing or unusable.
func NewFiles(certPath, keyPath, bundlePath string, clk clock.WithTicker) (*Files, error) {
	for _, path := range []string{certPath, keyPath} {
		if _, err := os.Stat(path); err != nil {
			return nil, fmt.Errorf("read the serving certificate: %w", err)
		}
	}

	f := &Files{}

	if bundlePath != "" {
		var err error
		if f.bundle, err = NewBundleFile(bundlePath, clk, func([]byte) { f.notify() }); err != nil {
			return nil, err
		}
	}

	// This comes last, because it starts a goroutine.
	certificate, err := certwatcher.New(certPath, keyPath)
	if err != nil {
		return nil, fmt.Errorf("read the serving certificate from %s and its key from %s: %w", certPath, keyPath, err)
	}

	f.certificate = certificate

	return f, nil
}

// SetupWithManager implements [Source].
func (f *Files) SetupWithManager(mgr manager.Manager) error {
	if err := mgr.Add(f.certificate); err != nil {
		return fmt.Errorf("follow the serving certificate: %w", err)
	}

	if f.bundle == nil {
		return nil
	}

	if err := mgr.Add(f.bundle); err != nil {
		return fmt.Errorf("follow the CA bundle: %w", err)
	}

	return nil
}

// GetCertificate implements [Source].
func (f *Files) GetCertificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	return f.certificate.GetCertificate(hello) //nolint:wrapcheck // it never fails
}

// Bundle implements [Source].
func (f *Files) Bundle() []byte {
	if f.bundle == nil {
		return nil
	}

	return f.bundle.PEM()
}

// Ready implements [Source]. A Files always has content.
func (f *Files) Ready(*http.Request) error { return nil }
