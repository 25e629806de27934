package certs

import (
	"context"
	"crypto/x509"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

// replica is one of several replicas that maintain the same Secret and ConfigMap. It looks when it is told to.
type replica struct {
	*Secret

	t *testing.T
}

func newReplica(t *testing.T, namespace string, clk *clocktesting.FakePassiveClock) *replica {
	t.Helper()

	api := localplane.Shared(t).Client

	return &replica{t: t, Secret: &Secret{Client: api, Live: api, ConfigMap: "ca", Policy: policy, Clock: clk,
		Name: types.NamespacedName{Namespace: namespace, Name: "tls"}}}
}

func (r *replica) lookAtSecret() {
	_, err := r.maintain(r.t.Context())
	require.NoError(r.t, err)
}

// lookAtConfigMap reports whether the replica wants to look again.
func (r *replica) lookAtConfigMap() bool {
	stale, err := r.publish(r.t.Context())
	require.NoError(r.t, err)

	return stale
}

// published returns the ConfigMap.
func (r *replica) published() *corev1.ConfigMap {
	r.t.Helper()

	found, err := r.authorities(r.t.Context(), r.Client)
	require.NoError(r.t, err)

	return found
}

// rotate makes the replica replace the CA, because its key is missing.
func (r *replica) rotate() {
	r.t.Helper()

	secret := &corev1.Secret{}
	require.NoError(r.t, r.Client.Get(r.t.Context(), r.Name, secret))
	delete(secret.Data, keyCAKey)
	require.NoError(r.t, r.Client.Update(r.t.Context(), secret))

	before := r.Bundle()
	r.lookAtSecret()
	require.NotEqual(r.t, before, r.Bundle())
}

// TestReplicasFromNothing: of many replicas that start at the same time, all serve the one certificate in the Secret.
func TestReplicasFromNothing(t *testing.T) {
	namespace, clk := localplane.Shared(t).Namespace(t), clocktesting.NewFakePassiveClock(birth)

	var all []*replica
	for range 8 {
		all = append(all, newReplica(t, namespace, clk))
	}

	var begun sync.WaitGroup
	for _, r := range all {
		begun.Go(func() { r.lookAtSecret() })
	}

	begun.Wait()

	stored := &corev1.Secret{}
	require.NoError(t, all[0].Client.Get(t.Context(), all[0].Name, stored))
	served := parse(stored.Data)

	for _, r := range all {
		if m := r.current.Load(); m != nil {
			require.Equal(t, served.Cert.Raw, m.Cert.Raw, "nobody serves what others will never see")
		}
	}

	for _, r := range all {
		r.lookAtSecret()
		require.ErrorContains(t, r.Ready(nil), "ConfigMap ca")
		require.Equal(t, served.Cert.Raw, r.current.Load().Cert.Raw)
		begun.Go(func() { r.lookAtConfigMap() })
	}

	begun.Wait()
	require.Equal(t, string(all[0].Bundle()), all[0].published().Data[keyBundle])
}

// TestOlderBundleIsNotPublished: a replica whose cache is behind does not undo what another has published.
func TestOlderBundleIsNotPublished(t *testing.T) {
	namespace, clk := localplane.Shared(t).Namespace(t), clocktesting.NewFakePassiveClock(birth)
	behind, ahead := newReplica(t, namespace, clk), newReplica(t, namespace, clk)

	for _, r := range []*replica{behind, ahead} {
		r.lookAtSecret()
		r.lookAtConfigMap()
		r.lookAtConfigMap()
		require.NoError(t, r.Ready(nil))
	}

	t.Run("that it finds", func(t *testing.T) {
		ahead.rotate()
		ahead.lookAtConfigMap()

		newer := ahead.published()
		require.Equal(t, string(ahead.Bundle()), newer.Data[keyBundle])
		require.NotEqual(t, string(behind.Bundle()), newer.Data[keyBundle])

		behind.lookAtConfigMap()
		require.Equal(t, newer, behind.published())
	})

	t.Run("that comes while it looks", func(t *testing.T) {
		lost := ahead.published()
		lost.Data = nil
		require.NoError(t, ahead.Client.Update(t.Context(), lost))

		// Whichever it reads first, the other is newer.
		behind.Live = &interrupted{Reader: behind.Client, after: func() {
			ahead.rotate()
			ahead.lookAtConfigMap()
		}}
		require.True(t, behind.lookAtConfigMap(), "it looks again")
		require.Equal(t, string(ahead.Bundle()), ahead.published().Data[keyBundle])
	})
}

// interrupted runs a function once after a read.
type interrupted struct {
	client.Reader

	once  sync.Once
	after func()
}

func (i *interrupted) Get(ctx context.Context, key client.ObjectKey, into client.Object,
	options ...client.GetOption) error {
	err := i.Reader.Get(ctx, key, into, options...)
	i.once.Do(i.after)

	return err
}

// TestNothingIsPublishedOfALostSecret: a Secret that is about to be restored does not describe what is served.
func TestNothingIsPublishedOfALostSecret(t *testing.T) {
	r := newReplica(t, localplane.Shared(t).Namespace(t), clocktesting.NewFakePassiveClock(birth))
	require.False(t, r.lookAtConfigMap(), "the Secret tells when there is something")
	require.Error(t, r.Ready(nil))

	r.lookAtSecret()
	r.lookAtConfigMap()

	before, secret := r.published(), &corev1.Secret{}
	require.NoError(t, r.Client.Get(t.Context(), r.Name, secret))

	lost := before.DeepCopy()
	lost.Data = nil
	require.NoError(t, r.Client.Update(t.Context(), lost))

	secret.Data[corev1.TLSCertKey] = []byte("garbage")
	secret.Data[keyBundle] = []byte("garbage")
	require.NoError(t, r.Client.Update(t.Context(), secret))
	require.True(t, r.lookAtConfigMap(), "it looks again")
	require.Empty(t, r.published().Data)

	r.lookAtSecret()
	r.lookAtConfigMap()
	require.Equal(t, string(r.Bundle()), r.published().Data[keyBundle])
}

func TestMain(m *testing.M) { os.Exit(localplane.Main(m, v1alpha1.AddToScheme)) }

// TestBundleFile: a changed bundle is used, and a corrupted bundle is not.
func TestBundleFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ca.crt")
	_, err := NewBundleFile(path, logr.Discard())
	require.ErrorContains(t, err, path)

	m, other := fresh(t, policy, birth), fresh(t, policy, birth)
	require.NoError(t, os.WriteFile(path, m.bundlePEM(), 0o600))

	f, err := NewBundleFile(path, logr.Discard())
	require.NoError(t, err)

	before := f.Pool()
	require.NoError(t, os.WriteFile(path, []byte("destroyed"), 0o600))
	require.Same(t, before, f.Pool())

	require.NoError(t, os.WriteFile(path, append(m.bundlePEM(), other.bundlePEM()...), 0o600))

	want := x509.NewCertPool()
	want.AddCert(m.CA)
	want.AddCert(other.CA)
	require.True(t, want.Equal(f.Pool()))
}
