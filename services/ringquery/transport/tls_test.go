package transport_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/credentials"

	"github.com/clusterring/clusterring/services/ringquery/transport"
)

// writeCertificate writes a self-signed certificate for 127.0.0.1 and its key.
func writeCertificate(t *testing.T, certFile, keyFile string, serial int64) {
	t.Helper()

	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial),
		NotBefore:    time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC),
		NotAfter:     time.Date(2120, 1, 1, 0, 0, 0, 0, time.UTC),
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	keyBytes, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)

	require.NoError(t, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyBytes}), 0o600))
	require.NoError(t, os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}), 0o600))
}

// served returns the serial number of the certificate that a new connection gets.
func (f *fixture) served() int64 {
	f.t.Helper()

	var serial int64
	conn := f.connectWith(credentials.NewTLS(&tls.Config{
		InsecureSkipVerify: true, //nolint:gosec // what is looked at is the certificate itself
		VerifyPeerCertificate: func(raw [][]byte, _ [][]*x509.Certificate) error {
			cert, err := x509.ParseCertificate(raw[0])
			if err == nil {
				serial = cert.SerialNumber.Int64()
			}
			return err
		},
	}))
	require.NoError(f.t, call(f.t.Context(), conn, "hello"))

	return serial
}

func TestCertificateIsReadAgain(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	writeCertificate(t, cert, key, 1)
	f := start(t, nil, "--tls-cert-file="+cert, "--tls-private-key-file="+key)

	require.EqualValues(t, 1, f.served())
	writeCertificate(t, cert, key, 2)
	require.Eventually(t, func() bool { return f.served() == 2 }, patience, interval)
}

func TestPlaintextClientIsNotServedUnderTLS(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	writeCertificate(t, cert, key, 1)
	f := start(t, nil, "--tls-cert-file="+cert, "--tls-private-key-file="+key)

	require.Error(t, call(t.Context(), f.connect(), "hello"))
}

func TestMissingCertificateIsAnError(t *testing.T) {
	s := &transport.Server{Options: transport.Options{CertFile: "/does/not/exist", KeyFile: "/does/not/exist"}}
	err := s.AddTo(t.Context(), newManager(t))
	require.ErrorContains(t, err, "--tls-cert-file")
	require.ErrorContains(t, err, "/does/not/exist")
}
