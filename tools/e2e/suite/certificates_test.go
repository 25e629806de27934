package suite_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/tools/e2e/cluster"
	"github.com/clusterring/clusterring/tools/e2e/report"
)

// certified are the services that make their certificates themselves, each in the Secret of its name with -tls.
var certified = []string{"assigner", "ringquery"}

// Lifetimes so short that one sees certificates and authorities replaced. An authority is known for a tenth of the
// shorter one before it signs, which is time enough for every client to notice.
const (
	certificateLives = 45 * time.Second
	authorityLives   = 3 * certificateLives
)

// lossless is of how many calls one may fail.
const lossless = 1000

// certificates has the certificates of the assigner and of ringquery replaced while both are asked: by deleting their
// Secrets, twice, the second time what replaced the first; then by lifetimes so short that they, and their authorities,
// grow old again and again; and then by the old lifetimes.
func (s *suite) certificates(t *testing.T) {
	ring := s.ring(t, "certificates", 2)
	lifetimes := s.lifetimes(t)
	open := s.failOpen(t)
	run := s.pressure(t, ring, s.size.rate)
	questions := s.keepAsking(t, ring)
	s.lasts(t, run, between)

	for range 2 {
		bundle := s.bundle(t, ring)
		s.deleteCertificates(t)
		s.lasts(t, run, 3*between)
		s.note(t, "the API server trusts another authority", s.bundle(t, ring) != bundle)
	}
	lifetimes("--tls-cert-lifetime="+certificateLives.String(), "--tls-ca-lifetime="+authorityLives.String())
	s.deleteCertificates(t)
	s.rotates(t)
	lifetimes()
	s.lasts(t, run, 3*between)

	answers, failures := questions()
	result := s.noneFailed(t, run)
	s.assignedAtOnce(t, result)
	missed := s.failOpen(t) - open
	// With a certificate that the API server does not trust, all calls would fail. One may fail when its connection ends:
	// Go's server closes a connection a second after it has asked the client not to use it any more, which is too soon for
	// a client on a busy machine.
	s.demand(t, report.Figure{
		Name: "calls of webhooks that failed", Value: missed,
		Limit: fmt.Sprintf("at most 1 in %d", lossless), Kept: missed*lossless <= float64(result.Created),
	})
	s.note(t, "questions answered by ringquery", answers)
	s.demand(t, report.Figure{Name: "questions that failed", Value: len(failures), Limit: "none",
		Kept: len(failures) == 0})
	assert.Empty(t, failures)
	s.complete(t, ring, 2)
}

// lifetimes returns a function that starts the services with more flags, or with none but their own, and waits until
// that is done. At the end of the test they have their own again.
func (s *suite) lifetimes(t *testing.T) func(more ...string) {
	t.Helper()

	own := map[string][]string{}

	for _, name := range certified {
		var err error

		own[name], err = s.Arguments(t.Context(), service(name))
		require.NoError(t, err)
	}

	set := func(ctx context.Context, more ...string) error {
		var errs []error
		for name, arguments := range own {
			errs = append(errs, s.SetArguments(ctx, service(name), slices.Concat(arguments, more)))
		}

		for name := range own {
			errs = append(errs, s.Rolled(ctx, service(name), patience))
		}

		return errors.Join(errs...)
	}
	t.Cleanup(func() { assert.NoError(t, set(context.WithoutCancel(t.Context()))) })

	return func(more ...string) { require.NoError(t, set(t.Context(), more...)) }
}

// deleteCertificates deletes the Secrets of the services and waits for those that replace them.
func (s *suite) deleteCertificates(t *testing.T) {
	t.Helper()

	for _, name := range certified {
		secret := &corev1.Secret{}
		secret.Namespace, secret.Name = system, name+"-tls"
		require.NoError(t, s.Client.Delete(t.Context(), secret))
		began := s.Clock.Now()
		require.NoError(t, s.Until(t.Context(), patience, func(ctx context.Context) error {
			if err := s.Client.Get(ctx, client.ObjectKeyFromObject(secret), secret); err != nil {
				return fmt.Errorf("read the Secret: %w", err)
			}

			return nil
		}))
		s.note(t, secret.Name+" is there again after", s.Clock.Since(began).Round(time.Millisecond))
	}
}

// rotates waits until each service has replaced its authority several times because it grew old.
func (s *suite) rotates(t *testing.T) {
	t.Helper()

	certificates, bundles := map[string]map[string]bool{}, map[string]map[string]bool{}
	for _, name := range certified {
		certificates[name], bundles[name] = map[string]bool{}, map[string]bool{}
	}

	began := s.Clock.Now()
	limit := time.Duration(s.size.rotations)*authorityLives + patience
	require.NoError(t, s.Until(t.Context(), limit, func(ctx context.Context) error {
		var errs []error

		for _, name := range certified {
			secret := &corev1.Secret{}
			if err := s.Client.Get(ctx, client.ObjectKey{Namespace: system, Name: name + "-tls"}, secret); err != nil {
				return fmt.Errorf("read the Secret of %s: %w", name, err)
			}

			certificates[name][string(secret.Data[corev1.TLSCertKey])] = true

			bundles[name][string(secret.Data[corev1.ServiceAccountRootCAKey])] = true
			if n := len(bundles[name]) - 1; n < s.size.rotations {
				errs = append(errs, fmt.Errorf("%s has replaced its authority %d times, not %d", name, n, s.size.rotations))
			}
		}

		return errors.Join(errs...)
	}))

	for _, name := range certified {
		s.note(t, fmt.Sprintf("rotations of %s in %s: authority / certificate", name,
			s.Clock.Since(began).Round(time.Second)),
			fmt.Sprintf("%d / %d", len(bundles[name])-1, len(certificates[name])-1))
	}
}

// bundle returns the authorities that the API server trusts for the ring's webhook.
func (s *suite) bundle(t *testing.T, ring cluster.Ring) string {
	t.Helper()

	found := &admissionregistrationv1.MutatingWebhookConfiguration{}
	require.NoError(t, s.Client.Get(t.Context(), client.ObjectKey{Name: contract.WebhookConfigurationName(ring.Name)},
		found))
	require.NotEmpty(t, found.Webhooks)

	return string(found.Webhooks[0].ClientConfig.CABundle)
}
