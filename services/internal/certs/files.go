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

// bundleInterval is how often the file of the bundle is looked at. A mounted Secret takes longer than that to change.
const bundleInterval = 10 * time.Second

// Files is a [Source] that reads files and follows their changes. Create it with [NewFiles].
type Files struct {
	subscribers

	certificate *certwatcher.CertWatcher
	bundlePath  string
	clock       clock.WithTicker
	bundle      atomic.Pointer[[]byte]
}

var _ Source = (*Files)(nil)

// NewFiles reads the serving certificate with its private key and, unless bundlePath is empty, the bundle; all of them PEM.
// It returns an error that names the file which is missing or cannot be used.
func NewFiles(certPath, keyPath, bundlePath string, clk clock.WithTicker) (*Files, error) {
	for _, path := range []string{certPath, keyPath} {
		if _, err := os.Stat(path); err != nil {
			return nil, fmt.Errorf("read the serving certificate: %w", err)
		}
	}

	f := &Files{bundlePath: bundlePath, clock: clk}
	if bundlePath != "" {
		if _, err := f.read(); err != nil {
			return nil, err
		}
	}

	// Last, for it has a goroutine from its beginning.
	certificate, err := certwatcher.New(certPath, keyPath)
	if err != nil {
		return nil, fmt.Errorf("read the serving certificate from %s and its key from %s: %w", certPath, keyPath, err)
	}

	f.certificate = certificate

	return f, nil
}

// read reads the bundle and says whether it has changed.
func (f *Files) read() (changed bool, err error) {
	pem, err := os.ReadFile(f.bundlePath)
	if err != nil {
		return false, fmt.Errorf("read the CA bundle: %w", err)
	}

	if _, err := cert.ParseCertsPEM(pem); err != nil {
		return false, fmt.Errorf("read the CA bundle from %s: %w", f.bundlePath, err)
	}

	before := f.bundle.Swap(&pem)

	return before == nil || !bytes.Equal(*before, pem), nil
}

// SetupWith implements [Source].
func (f *Files) SetupWith(mgr manager.Manager) error {
	if err := mgr.Add(f.certificate); err != nil {
		return fmt.Errorf("follow the serving certificate: %w", err)
	}

	if f.bundlePath == "" {
		return nil
	}

	if err := mgr.Add(bundleFollower{f}); err != nil {
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
	if pem := f.bundle.Load(); pem != nil {
		return *pem
	}

	return nil
}

// Ready implements [Source]. The files have been read before there is a Files.
func (f *Files) Ready(*http.Request) error { return nil }

// bundleFollower reads the bundle again from time to time.
type bundleFollower struct{ *Files }

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (bundleFollower) NeedLeaderElection() bool { return false }

// Start implements manager.Runnable.
func (b bundleFollower) Start(ctx context.Context) error {
	ticker := b.clock.NewTicker(bundleInterval)
	defer ticker.Stop()

	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}

		changed, err := b.read()
		if err != nil {
			log.FromContext(ctx).Error(err, "CA bundle stays as it was")
		} else if changed {
			b.notify()
		}
	}
}
