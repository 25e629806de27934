package certs

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// Files is a [Source] that reads files and follows their changes. Create it with [NewFiles].
type Files struct {
	subscribers

	certificate *certwatcher.CertWatcher
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

	certificate, err := certwatcher.New(certPath, keyPath)
	if err != nil {
		return nil, fmt.Errorf("read the serving certificate from %s and its key from %s: %w", certPath, keyPath, err)
	}

	return &Files{certificate: certificate}, nil
}

// SetupWithManager implements [Source].
func (f *Files) SetupWithManager(mgr manager.Manager) error {
	if err := mgr.Add(f.certificate); err != nil {
		return fmt.Errorf("follow the serving certificate: %w", err)
	}

	return nil
}

// GetCertificate implements [Source].
func (f *Files) GetCertificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	return f.certificate.GetCertificate(hello) //nolint:wrapcheck // it never fails
}

// Bundle implements [Source]: there is none.
func (f *Files) Bundle() []byte { return nil }

// Ready implements [Source]. A Files always has content.
func (f *Files) Ready(*http.Request) error { return nil }

// bundleInterval is how often the file of a bundle is checked. A mounted Secret takes longer than that to change.
const bundleInterval = 10 * time.Second

// BundleFile is a PEM file with CA certificates that is read again periodically. It is a manager.Runnable for every
// replica, and safe for concurrent use. Create it with [NewBundleFile].
type BundleFile struct {
	path    string
	clock   clock.WithTicker
	changed func(pem []byte)
	pem     atomic.Pointer[[]byte]
}

// NewBundleFile reads the file. It returns an error that names the file if the file is missing or contains no
// certificates. After [BundleFile.Start], changed is called with the content whenever it has changed. If the file
// becomes unusable, the error is logged and the content remains as it was.
func NewBundleFile(path string, clk clock.WithTicker, changed func(pem []byte)) (*BundleFile, error) {
	b := &BundleFile{path: path, clock: clk, changed: changed}
	if _, err := b.read(); err != nil {
		return nil, err
	}

	return b, nil
}

// PEM returns the last usable content of the file. It must not be changed.
func (b *BundleFile) PEM() []byte { return *b.pem.Load() }

// NeedLeaderElection implements manager.LeaderElectionRunnable: every replica follows the file.
func (*BundleFile) NeedLeaderElection() bool { return false }

// Start implements manager.Runnable: it follows the file until ctx ends.
func (b *BundleFile) Start(ctx context.Context) error {
	ticker := b.clock.NewTicker(bundleInterval)
	defer ticker.Stop()

	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}

		if changed, err := b.read(); err != nil {
			log.FromContext(ctx).Error(err, "Keeping the previous CA bundle")
		} else if changed {
			log.FromContext(ctx).Info("CA bundle has changed", "file", b.path)
			b.changed(b.PEM())
		}
	}
}

// read reads the file and reports whether it has changed.
func (b *BundleFile) read() (changed bool, err error) {
	pem, err := os.ReadFile(b.path)
	if err != nil {
		return false, fmt.Errorf("read the CA bundle: %w", err)
	}

	if before := b.pem.Load(); before != nil && bytes.Equal(*before, pem) {
		return false, nil
	}

	if _, err := cert.ParseCertsPEM(pem); err != nil {
		return false, fmt.Errorf("read the CA bundle from %s: %w", b.path, err)
	}

	b.pem.Store(&pem)

	return true, nil
}
