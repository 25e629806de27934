package certs

import (
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"sync/atomic"

	"github.com/go-logr/logr"
	"k8s.io/client-go/util/cert"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// Files is a [Source] that reads files and follows their changes. Create it with [NewFiles].
type Files struct {
	subscribers
	*certwatcher.CertWatcher
}

var _ Source = (*Files)(nil)

// NewFiles reads the serving certificate with its private key; both files are PEM. It returns an error that names the
// file that is missing or unusable.
func NewFiles(certPath, keyPath string) (*Files, error) {
	for _, path := range []string{certPath, keyPath} {
		if _, err := os.Stat(path); err != nil {
			return nil, fmt.Errorf("read the serving certificate: %w", err)
		}
	}

	watcher, err := certwatcher.New(certPath, keyPath)
	if err != nil {
		return nil, fmt.Errorf("read the serving certificate from %s and its key from %s: %w", certPath, keyPath, err)
	}

	return &Files{CertWatcher: watcher}, nil
}

// SetupWithManager implements [Source].
func (f *Files) SetupWithManager(mgr manager.Manager) error {
	if err := mgr.Add(f.CertWatcher); err != nil {
		return fmt.Errorf("follow the serving certificate: %w", err)
	}

	return nil
}

// Bundle implements [Source]: there is none.
func (f *Files) Bundle() []byte { return nil }

// Ready implements [Source]. A Files always has content.
func (f *Files) Ready(*http.Request) error { return nil }

// BundleFile is a PEM file with CA certificates, which is read again whenever it is asked for, once for each TLS
// handshake. It is safe for concurrent use. Create it with [NewBundleFile].
type BundleFile struct {
	path   string
	log    logr.Logger
	pool   atomic.Pointer[x509.CertPool]
	failed atomic.Bool
}

// NewBundleFile reads the file. It returns an error that names the file if the file is missing or contains no
// certificates.
func NewBundleFile(path string, log logr.Logger) (*BundleFile, error) {
	b := &BundleFile{path: path, log: log}
	if err := b.read(); err != nil {
		return nil, err
	}

	return b, nil
}

// Pool returns the certificates in the file. If the file becomes unusable, the error is logged once and the result
// remains as it was.
func (b *BundleFile) Pool() *x509.CertPool {
	if err := b.read(); err == nil {
		b.failed.Store(false)
	} else if !b.failed.Swap(true) {
		b.log.Error(err, "Keeping the previous CA bundle")
	}

	return b.pool.Load()
}

func (b *BundleFile) read() error {
	pool, err := cert.NewPool(b.path)
	if err != nil {
		return fmt.Errorf("read the CA bundle from %s: %w", b.path, err)
	}

	b.pool.Store(pool)

	return nil
}
