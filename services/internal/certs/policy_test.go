package certs

import (
	"crypto/x509"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

const (
	day      = 24 * time.Hour
	caLife   = 300 * day
	certLife = 90 * day
	overlap  = time.Hour
)

var (
	birth  = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	policy = Policy{Service: "assigner", CALifetime: caLife, CertLifetime: certLife, Overlap: overlap,
		Hosts: []string{"assigner.sharding-system.svc", "127.0.0.1"}}
)

// fresh is the material of a new installation.
func fresh(t *testing.T, p Policy, now time.Time) Material {
	t.Helper()

	d := p.Next(now, Material{})
	require.Equal(t, RotateCA, d.Action)

	m, err := p.apply(now, Material{}, d)
	require.NoError(t, err)

	return m
}

// step carries out the decision of the policy and returns it.
func step(t *testing.T, now time.Time, m *Material) Action {
	t.Helper()

	d := policy.Next(now, *m)
	next, err := policy.apply(now, *m, d)
	require.NoError(t, err)

	*m = parse(next.data())

	return d.Action
}

// trusts reports whether a client with this bundle accepts the certificate.
func trusts(now time.Time, bundle Material, served Material) error {
	roots := x509.NewCertPool()
	for _, ca := range bundle.Bundle {
		roots.AddCert(ca)
	}

	_, err := served.Cert.Verify(x509.VerifyOptions{DNSName: "assigner.sharding-system.svc", Roots: roots,
		CurrentTime: now})

	return err
}

func TestNext(t *testing.T) {
	good := fresh(t, policy, birth)
	data := func(change func(map[string][]byte)) Material {
		d := good.data()
		change(d)

		return parse(d)
	}

	renewed, err := policy.issue(birth.Add(199*day), good)
	require.NoError(t, err)

	rotated, err := policy.rotate(birth.Add(200*day-overlap), renewed)
	require.NoError(t, err)

	early, err := policy.issue(birth.Add(2*day), good)
	require.NoError(t, err)

	moved := policy
	moved.Hosts = []string{"elsewhere.svc"}

	for _, c := range []struct {
		what   string
		policy Policy
		m      Material
		age    time.Duration
		want   Action
		after  time.Duration
	}{
		{"nothing", policy, Material{}, 0, RotateCA, 0},
		{"new", policy, good, 0, Keep, 60 * day},
		{"a third of its life left", policy, good, 60 * day, Issue, 0},
		{"shortly before that", policy, good, 60*day - time.Second, Keep, time.Second},
		{"certificate expired", policy, good, 91 * day, Issue, 0},
		{"authority grows old", policy, good, 200 * day, RotateCA, 0},
		{"authority expired", policy, good, 301 * day, RotateCA, 0},
		{"no key of the authority", policy, data(func(d map[string][]byte) { delete(d, keyCAKey) }), 0, RotateCA, 0},
		{"the key of another authority", policy,
			data(func(d map[string][]byte) { d[keyCAKey] = d[corev1.TLSPrivateKeyKey] }), 0, RotateCA, 0},
		{"no authority", policy, data(func(d map[string][]byte) { delete(d, keyBundle) }), 0, RotateCA, 0},
		{"garbage", policy, parse(map[string][]byte{keyBundle: []byte("x"), keyCAKey: []byte("y"), corev1.TLSCertKey: {0}}),
			0, RotateCA, 0},
		{"no certificate", policy, data(func(d map[string][]byte) { delete(d, corev1.TLSCertKey) }), 0, Issue, 0},
		{"the key of another certificate", policy,
			data(func(d map[string][]byte) { d[corev1.TLSPrivateKeyKey] = d[keyCAKey] }), 0, Issue, 0},
		{"the certificate of another authority", policy, data(func(d map[string][]byte) {
			other := fresh(t, policy, birth).data()
			d[corev1.TLSCertKey], d[corev1.TLSPrivateKeyKey] = other[corev1.TLSCertKey], other[corev1.TLSPrivateKeyKey]
		}), 0, Issue, 0},
		{"a certificate by a clock that is ahead", policy, early, day, Issue, 0},
		{"an authority by a clock that is ahead", policy, fresh(t, policy, birth.Add(2*day)), day, RotateCA, 0},
		{"another host", moved, good, 0, Issue, 0},
		{"after a rotation", policy, rotated, 200*day - overlap, Keep, overlap},
		{"at the end of the overlap", policy, rotated, 200 * day, Issue, 0},
	} {
		t.Run(c.what, func(t *testing.T) {
			d := c.policy.Next(birth.Add(c.age), c.m)
			require.Equal(t, c.want, d.Action, d.Reason)
			require.Equal(t, c.after, d.CheckAfter)
			require.Equal(t, c.want == Keep, d.Reason == "")
		})
	}
}

// TestYears simulates ten years, in which clients learn about a bundle half an hour late. They must trust the served
// certificate at all times.
func TestYears(t *testing.T) {
	m := fresh(t, policy, birth)

	const late = overlap / 2

	known := m // what clients know
	count := map[Action]int{}

	for now := birth; now.Before(birth.Add(3650 * day)); {
		d := policy.Next(now, m)
		count[d.Action]++

		if d.Action == Keep {
			require.Positive(t, d.CheckAfter)

			if d.CheckAfter > late {
				known = m
			}

			now = now.Add(d.CheckAfter)
		} else {
			step(t, now, &m)
		}

		require.NoError(t, trusts(now, known, m), "%s after the beginning", now.Sub(birth))
		require.LessOrEqual(t, len(m.Bundle), 2)
	}

	require.Equal(t, 3650/200, count[RotateCA])
	require.Greater(t, count[Issue], 3650/60)
	require.Less(t, count[Issue], 2*3650/60)
}

// TestLostSecret: a replica that remembers what was served continues with it, together with a new CA.
func TestLostSecret(t *testing.T) {
	m := fresh(t, policy, birth)
	known, now := m, birth.Add(day)

	m = m.withoutCAKey()
	require.Equal(t, RotateCA, step(t, now, &m))
	require.Equal(t, known.Cert.Raw, m.Cert.Raw, "the certificate is still served")
	require.NoError(t, trusts(now, known, m))
	require.Equal(t, Keep, step(t, now, &m))

	known = m
	require.Equal(t, Issue, step(t, now.Add(overlap), &m))
	require.NoError(t, trusts(now.Add(overlap), known, m))
	require.True(t, signedBy(m.Cert, m.CA))
}

// TestHostsAgree: replicas that are configured for different hosts settle on a certificate for both.
func TestHostsAgree(t *testing.T) {
	other := policy
	other.Hosts = []string{"elsewhere.svc", "::1"}

	m := fresh(t, policy, birth)

	m, err := other.issue(birth, m)
	require.NoError(t, err)
	require.Equal(t, Keep, policy.Next(birth, m).Action)
	require.Equal(t, Keep, other.Next(birth, m).Action)

	m, err = other.issue(birth, m)
	require.NoError(t, err)
	require.Error(t, m.Cert.VerifyHostname("127.0.0.1"), "names that nobody asks for go with the next certificate")
}

// TestLongerLifetimes: a certificate with a short lifetime is replaced before it expires, although a new CA must be
// published for longer.
func TestLongerLifetimes(t *testing.T) {
	short := policy
	short.CertLifetime, short.CALifetime, short.Overlap = time.Minute, 3*time.Minute, 6*time.Second
	m := fresh(t, short, birth)
	now := birth.Add(10 * time.Second)

	require.Equal(t, RotateCA, step(t, now, &m))

	d := policy.Next(now, m)
	require.Equal(t, Decision{Action: Keep, CheckAfter: 44 * time.Second}, d, "of which a tenth remains")

	known := m
	now = now.Add(d.CheckAfter)
	require.Equal(t, Issue, step(t, now, &m))
	require.NoError(t, trusts(now, known, m))
	require.Equal(t, Decision{Action: Keep, CheckAfter: 60 * day}, policy.Next(now, m))
}

func TestShortLivedAuthorityBoundsCertificates(t *testing.T) {
	m := fresh(t, policy, birth)

	late, err := policy.issue(birth.Add(caLife-day), m)
	require.NoError(t, err)
	require.Equal(t, m.CA.NotAfter, late.Cert.NotAfter)
}
