package floor_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/tools/load/internal/floor"
)

func TestHandler(t *testing.T) {
	handler, err := floor.Handler("example.com/shard", "a")
	require.NoError(t, err)

	answer := httptest.NewRecorder()
	handler.ServeHTTP(answer, httptest.NewRequest(http.MethodPost, "/any", strings.NewReader(
		`{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"u1","object":{"metadata":{"name":"x"}}}}`)))
	require.Equal(t, http.StatusOK, answer.Code)
	require.JSONEq(t,
		`{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","response":{"uid":"u1","allowed":true,"patchType":"JSONPatch",`+
			`"patch":"W3sib3AiOiJhZGQiLCJwYXRoIjoiL21ldGFkYXRhL2xhYmVscyIsInZhbHVlIjp7ImV4YW1wbGUuY29tL3NoYXJkIjoiYSJ9fV0="}}`,
		answer.Body.String())

	for _, body := range []string{"", "{}"} {
		answer = httptest.NewRecorder()
		handler.ServeHTTP(answer, httptest.NewRequest(http.MethodPost, "/any", strings.NewReader(body)))
		require.Equal(t, http.StatusBadRequest, answer.Code)
	}
}
