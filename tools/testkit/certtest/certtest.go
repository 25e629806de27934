// Package certtest creates certificates for tests: of servers on 127.0.0.1, and of their clients.
package certtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Begin and End limit the default validity of certificates.
var (
	Begin = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	End   = time.Date(2120, 1, 1, 0, 0, 0, 0, time.UTC)
)

// Authority is a CA. Create it with NewAuthority.
type Authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// NewAuthority returns a new CA.
func NewAuthority(t testing.TB) *Authority {
	t.Helper()

	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "CA of a test"}, NotBefore: Begin, NotAfter: End,
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	a := &Authority{certificate: template, key: newKey(t)}
	a.certificate = a.sign(t, template, &a.key.PublicKey)

	return a
}

// PEM returns the CA certificate.
func (a *Authority) PEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.certificate.Raw})
}

// Pool returns a pool that contains only the CA certificate.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.certificate)

	return pool
}

// Pair is a certificate and its key, both PEM.
type Pair struct{ Cert, Key []byte }

// Server returns a certificate for 127.0.0.1 with the serial number. A zero end means End.
func (a *Authority) Server(t testing.TB, serial int64, end time.Time) Pair {
	t.Helper()

	return a.issue(t, &x509.Certificate{
		SerialNumber: big.NewInt(serial), NotAfter: end, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
}

// Client returns a certificate of a user. A zero end means End.
func (a *Authority) Client(t testing.TB, end time.Time, user string, groups ...string) Pair {
	t.Helper()

	return a.issue(t, &x509.Certificate{
		SerialNumber: big.NewInt(2), NotAfter: end, Subject: pkix.Name{CommonName: user, Organization: groups},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

func (a *Authority) issue(t testing.TB, template *x509.Certificate) Pair {
	t.Helper()

	template.NotBefore, template.KeyUsage = Begin, x509.KeyUsageDigitalSignature
	if template.NotAfter.IsZero() {
		template.NotAfter = End
	}

	key := newKey(t)
	certificate := a.sign(t, template, &key.PublicKey)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)

	return Pair{
		Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Raw}),
		Key:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
	}
}

// Write writes both to files, the key first.
func (p Pair) Write(t testing.TB, certFile, keyFile string) {
	t.Helper()

	require.NoError(t, os.WriteFile(keyFile, p.Key, 0o600))
	require.NoError(t, os.WriteFile(certFile, p.Cert, 0o600))
}

// TLS returns the pair for crypto/tls.
func (p Pair) TLS(t testing.TB) tls.Certificate {
	t.Helper()

	pair, err := tls.X509KeyPair(p.Cert, p.Key)
	require.NoError(t, err)

	return pair
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()

	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)

	return key
}

func (a *Authority) sign(t testing.TB, template *x509.Certificate, public *ecdsa.PublicKey) *x509.Certificate {
	t.Helper()

	raw, err := x509.CreateCertificate(rand.Reader, template, a.certificate, public, a.key)
	require.NoError(t, err)
	parsed, err := x509.ParseCertificate(raw)
	require.NoError(t, err)

	return parsed
}
