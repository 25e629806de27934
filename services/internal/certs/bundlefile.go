package certs

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// bundleInterval is how often the file of a bundle is looked at. A mounted Secret takes longer than that to change.
const bundleInterval = 10 * time.Second

// BundleFile is a file with the certificates of authorities, in PEM, that is read again from time to time. It is a
// manager.Runnable for every replica, and safe for concurrent use. Create it with [NewBundleFile].
type BundleFile struct {
	path    string
	clock   clock.WithTicker
	changed func(pem []byte)
	pem     atomic.Pointer[[]byte]
}

// NewBundleFile reads the file, and returns an error that names it if it is missing or holds no certificates. From
// [BundleFile.Start] on, changed is called with the content whenever that has become another; a file that cannot be used any more
// is logged, and the content stays as it was.
func NewBundleFile(path string, clk clock.WithTicker, changed func(pem []byte)) (*BundleFile, error) {
	b := &BundleFile{path: path, clock: clk, changed: changed}
	if _, err := b.read(); err != nil {
		return nil, err
	}

	return b, nil
}

// PEM returns what the file held when it was last of use. It must not be changed.
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
			log.FromContext(ctx).Error(err, "CA bundle stays as it was")
		} else if changed {
			log.FromContext(ctx).Info("CA bundle has changed", "file", b.path)
			b.changed(b.PEM())
		}
	}
}

// read reads the file and says whether it has changed.
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
