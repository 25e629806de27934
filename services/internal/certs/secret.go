package certs

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"maps"
	"net/http"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Secret is a [Source] that maintains a Secret. Its exported fields must be set before use.
type Secret struct {
	// Client writes the Secret, and reads it from a cache that contains nothing else.
	Client client.Client
	// Name is the name of the Secret.
	Name types.NamespacedName
	// Policy decides.
	Policy Policy
	Clock  clock.PassiveClock

	subscribers

	current atomic.Pointer[Material]
}

var _ Source = (*Secret)(nil)

// SetupWithManager implements [Source].
func (s *Secret) SetupWithManager(mgr manager.Manager) error {
	return maintainer{controller: "certificates", kind: "Secret", name: s.Name, obj: &corev1.Secret{}}.setup(mgr, s)
}

// Reconcile serves the content of the Secret, and changes the Secret if the policy requires it.
func (s *Secret) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	if req.NamespacedName != s.Name {
		return reconcile.Result{}, nil
	}

	secret := &corev1.Secret{}
	if err := s.Client.Get(ctx, s.Name, secret); err != nil && !apierrors.IsNotFound(err) {
		return reconcile.Result{}, fmt.Errorf("read Secret %s: %w", s.Name, err)
	}

	now := s.Clock.Now()
	m := s.remember(now, parse(secret.Data))

	d := s.Policy.Next(now, m)
	if d.Action == Keep {
		s.load(ctx, m)
		return reconcile.Result{RequeueAfter: d.CheckAfter}, nil
	}

	m, err := s.Policy.apply(now, m, d)
	if err != nil {
		return reconcile.Result{}, err
	}

	err = s.write(ctx, secret, m)
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return reconcile.Result{RequeueAfter: staleRetry}, nil
	} else if err != nil {
		return reconcile.Result{}, err
	}

	log.FromContext(ctx).Info("Certificates renewed", "secret", s.Name.String(), "action", string(d.Action), "reason", d.Reason)
	s.load(ctx, m)

	return reconcile.Result{RequeueAfter: staleRetry}, nil
}

// remember replaces unusable material with what is served now.
func (s *Secret) remember(now time.Time, m Material) Material {
	served := s.current.Load()
	if m.CA != nil || served == nil || s.Policy.unusableCert(now, m) == "" || s.Policy.unusableCert(now, *served) != "" {
		return m
	}

	return served.withoutCAKey()
}

// write stores the material in the Secret that was read, or in a new Secret if there was none.
func (s *Secret) write(ctx context.Context, secret *corev1.Secret, m Material) error {
	if secret.ResourceVersion == "" {
		secret = &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: s.Name.Namespace, Name: s.Name.Name},
			Type:       corev1.SecretTypeTLS,
			Data:       m.data(),
		}

		if err := s.Client.Create(ctx, secret); err != nil {
			return fmt.Errorf("create Secret %s: %w", s.Name, err)
		}

		return nil
	}

	secret = secret.DeepCopy()
	if secret.Data == nil {
		secret.Data = map[string][]byte{}
	}

	maps.Copy(secret.Data, m.data())

	if err := s.Client.Update(ctx, secret); err != nil {
		return fmt.Errorf("update Secret %s: %w", s.Name, err)
	}

	return nil
}

// stored returns the bundle in the Secret, or errLost if the Secret is about to be restored.
func (s *Secret) stored(ctx context.Context, from client.Reader) ([]byte, error) {
	secret := &corev1.Secret{}
	if err := from.Get(ctx, s.Name, secret); apierrors.IsNotFound(err) {
		return nil, errLost
	} else if err != nil {
		return nil, fmt.Errorf("read Secret %s: %w", s.Name, err)
	}

	m := parse(secret.Data)
	if s.Policy.unusableCert(s.Clock.Now(), m) != "" {
		return nil, errLost
	}

	return m.bundlePEM(), nil
}

// load starts to serve the material, which has been in the Secret.
func (s *Secret) load(ctx context.Context, m Material) {
	before := s.current.Swap(&m)
	if before == nil || !before.Cert.Equal(m.Cert) {
		log.FromContext(ctx).Info("Serving a certificate", "secret", s.Name.String(), "expires", m.Cert.NotAfter)
	}

	if before == nil || !bytes.Equal(before.bundlePEM(), m.bundlePEM()) {
		s.notify()
	}
}

// GetCertificate implements [Source].
func (s *Secret) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	m := s.current.Load()
	if m == nil {
		return nil, s.missing()
	}

	return &m.pair, nil
}

// Bundle implements [Source].
func (s *Secret) Bundle() []byte {
	m := s.current.Load()
	if m == nil {
		return nil
	}

	return m.bundlePEM()
}

// Ready implements [Source].
func (s *Secret) Ready(*http.Request) error {
	if s.current.Load() == nil {
		return s.missing()
	}

	return nil
}

func (s *Secret) missing() error {
	return fmt.Errorf("Secret %s has not been read or created yet", s.Name)
}
