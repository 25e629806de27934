package floor_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/clusterring/clusterring/tools/load/internal/floor"
	"github.com/clusterring/clusterring/tools/testkit/process"
	"github.com/clusterring/clusterring/tools/testkit/services"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestHandler(t *testing.T) {
	handler, err := floor.Handler("example.com/shard", "a")
	require.NoError(t, err)

	answer := httptest.NewRecorder()
	handler.ServeHTTP(answer, httptest.NewRequest(http.MethodPost, "/any", strings.NewReader(
		`{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"u1","object":{"metadata":{"name":"x"}}}}`)))
	require.Equal(t, http.StatusOK, answer.Code)
	require.JSONEq(t, `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","response":{"uid":"u1","allowed":true,"patchType":"JSONPatch",`+
		`"patch":"W3sib3AiOiJhZGQiLCJwYXRoIjoiL21ldGFkYXRhL2xhYmVscyIsInZhbHVlIjp7ImV4YW1wbGUuY29tL3NoYXJkIjoiYSJ9fV0="}}`,
		answer.Body.String())

	for _, body := range []string{"", "{}"} {
		answer = httptest.NewRecorder()
		handler.ServeHTTP(answer, httptest.NewRequest(http.MethodPost, "/any", strings.NewReader(body)))
		require.Equal(t, http.StatusBadRequest, answer.Code)
	}
}

func TestServe(t *testing.T) {
	certificate, err := services.NewCertificate(t.TempDir(), "noop-webhook", time.Now())
	require.NoError(t, err)
	free, err := process.FreePorts(1)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())

	done := make(chan error, 1)
	go func() {
		done <- floor.Serve(ctx, floor.Options{
			Address: free[0], CertFile: certificate.CertFile, KeyFile: certificate.KeyFile, Label: "l", Value: "v",
		})
	}()

	authorities := x509.NewCertPool()
	require.True(t, authorities.AppendCertsFromPEM(certificate.CA))

	transport := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: authorities, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true,
	}
	defer transport.CloseIdleConnections()

	client := &http.Client{Transport: transport}
	require.Eventually(t, func() bool {
		response, err := client.Get("https://" + free[0] + floor.ReadyPath)
		return err == nil && response.Body.Close() == nil && response.StatusCode == http.StatusOK
	}, 20*time.Second, 10*time.Millisecond)

	response, err := client.Post("https://"+free[0]+"/webhook", "application/json",
		bytes.NewReader([]byte(`{"request":{"uid":"u"}}`)))
	require.NoError(t, err)
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, 2, response.ProtoMajor)
	require.Contains(t, string(body), `"uid":"u","allowed":true`)

	cancel()
	require.NoError(t, <-done)
}
