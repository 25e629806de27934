package certs

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/cert"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

func TestMain(m *testing.M) { os.Exit(localplane.Main(m, v1alpha1.AddToScheme)) }

// TestBundleFile: a changed bundle is used, and a corrupted bundle is not.
func TestBundleFile(t *testing.T) {
	dir := t.TempDir()
	m := fresh(t, policy, birth)
	certFile, keyFile, bundleFile := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"), filepath.Join(dir, "ca.crt")
	require.NoError(t, os.WriteFile(certFile, m.data()[corev1.TLSCertKey], 0o600))
	require.NoError(t, os.WriteFile(keyFile, m.data()[corev1.TLSPrivateKeyKey], 0o600))
	require.NoError(t, os.WriteFile(bundleFile, m.bundlePEM(), 0o600))

	clk := clocktesting.NewFakeClock(birth)
	f, err := NewFiles(certFile, keyFile, bundleFile, clk)
	require.NoError(t, err)
	require.Equal(t, m.bundlePEM(), f.Bundle())
	require.NoError(t, f.Ready(nil))

	changes := make(chan struct{}, 10)
	f.Subscribe(func() { changes <- struct{}{} })

	ctx, cancel := context.WithCancel(t.Context())

	done := make(chan error, 2)
	go func() { done <- f.bundle.Start(ctx) }()
	go func() { done <- f.certificate.Start(ctx) }()

	defer func() {
		cancel()
		require.NoError(t, <-done)
		require.NoError(t, <-done)
	}()

	look := func() {
		require.Eventually(t, clk.HasWaiters, 30*time.Second, time.Millisecond)
		clk.Step(bundleInterval)
	}

	require.NoError(t, os.WriteFile(bundleFile, []byte("destroyed"), 0o600))
	look()

	other := fresh(t, policy, birth)
	both := append(m.bundlePEM(), other.bundlePEM()...)
	require.NoError(t, os.WriteFile(bundleFile, both, 0o600))
	look()

	require.Eventually(t, func() bool { return len(changes) > 0 }, 30*time.Second, time.Millisecond)
	require.Equal(t, both, f.Bundle())
	require.Len(t, changes, 1, "and nothing else was told")

	parsed, err := cert.ParseCertsPEM(f.Bundle())
	require.NoError(t, err)
	require.Len(t, parsed, 2)
}
