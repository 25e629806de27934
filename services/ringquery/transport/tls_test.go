package transport_test

import (
	"crypto/tls"
	"crypto/x509"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/clusterring/clusterring/tools/testkit/certtest"
)

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

// files writes the pair to new files. It returns the flags and a function that overwrites the files.
func files(t *testing.T, pair certtest.Pair) (flags []string, change func(certtest.Pair)) {
	t.Helper()

	dir := t.TempDir()
	cert, key := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	pair.Write(t, cert, key)

	return []string{"--ca-mode=file", "--tls-cert-file=" + cert, "--tls-private-key-file=" + key},
		func(p certtest.Pair) { p.Write(t, cert, key) }
}

// watch opens a stream, and returns a function that receives the next message.
func (f *fixture) watch(creds credentials.TransportCredentials) func() healthpb.HealthCheckResponse_ServingStatus {
	f.t.Helper()

	stream, err := healthpb.NewHealthClient(f.connectWith(creds)).Watch(f.t.Context(), &healthpb.HealthCheckRequest{})
	require.NoError(f.t, err)

	return func() healthpb.HealthCheckResponse_ServingStatus {
		res, err := stream.Recv()
		require.NoError(f.t, err, "the stream was dropped")

		return res.GetStatus()
	}
}

// TestCertificateOfFilesIsReadAgain replaces the certificate while a stream is open. New connections get the new
// certificate, and the stream continues.
func TestCertificateOfFilesIsReadAgain(t *testing.T) {
	authority := certtest.NewAuthority(t)
	flags, change := files(t, authority.Server(t, 1, time.Time{}))
	f := start(t, nil, flags...)

	require.NoError(t, f.CertificateReady(nil))

	next := f.watch(credentials.NewTLS(&tls.Config{RootCAs: authority.Pool(), MinVersion: tls.VersionTLS13}))
	for next() != healthpb.HealthCheckResponse_SERVING { //nolint:revive // what comes first depends on when
	}

	require.EqualValues(t, 1, f.served())
	change(authority.Server(t, 2, time.Time{}))
	require.Eventually(t, func() bool { return f.served() == 2 }, patience, interval)

	notAnyMore := status.Error(codes.Unknown, "not any more")
	f.ready.Store(&notAnyMore)
	require.Equal(t, healthpb.HealthCheckResponse_NOT_SERVING, next())
}

func TestExpiredCertificateIsNotReadyAndReplaced(t *testing.T) {
	authority := certtest.NewAuthority(t)
	flags, change := files(t, authority.Server(t, 1, time.Date(2021, 1, 1, 0, 0, 0, 0, time.UTC)))
	f := start(t, nil, flags...)

	require.ErrorContains(t, f.CertificateReady(nil), "from 2020-01-01T00:00:00Z to 2021-01-01T00:00:00Z")
	conn := f.connectWith(credentials.NewTLS(&tls.Config{RootCAs: authority.Pool(), MinVersion: tls.VersionTLS12}), eager)
	err := call(t.Context(), conn, "hello")
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.ErrorContains(t, err, "expired")

	change(authority.Server(t, 2, time.Time{}))
	require.Eventually(t, func() bool { return call(t.Context(), conn, "hello") == nil }, patience, interval)
	require.NoError(t, f.CertificateReady(nil))
}
