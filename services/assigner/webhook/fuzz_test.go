package webhook_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

// Whatever bytes a body has, the answer is an error of HTTP, which the API server ignores, or allows the write. No decision panics, and
// an object gets nothing but the label of the ring with the name of a shard.
func FuzzReview(f *testing.F) {
	f.Add([]byte(reviewOf(plain)), ring)
	f.Add([]byte(reviewOf(`{"name":"a","labels":null,"ownerReferences":[{"controller":true}]}`)), ring)
	f.Add([]byte(reviewOf(`{"name":{"a":1},"labels":[]}`)), "")
	f.Add([]byte(`{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"1"}}`), "a/b")
	f.Add([]byte(`{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"1","operation":"UPDATE",`+
		`"resource":{"resource":"configmaps"},"object":{"metadata":{"labels":{"a":"b"}}},"oldObject":{"metadata":{}}}}`), ring)
	f.Add([]byte("\x00\xff{"), ring)

	h, _ := newHandler(f, fixedRings{ring: newRing(3)})

	f.Fuzz(func(t *testing.T, body []byte, name string) {
		r := post(contract.WebhookPathPrefix, string(body))
		r.URL.Path += name

		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)

		if w.Code != http.StatusOK {
			require.Equal(t, http.StatusBadRequest, w.Code)
			return
		}

		var answer admissionv1.AdmissionReview
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &answer))
		require.NotNil(t, answer.Response)
		require.True(t, answer.Response.Allowed)

		if answer.Response.Patch == nil {
			return
		}

		var patch []struct{ Op string }
		require.NoError(t, json.Unmarshal(answer.Response.Patch, &patch))
		require.NotEmpty(t, patch)
		require.Equal(t, "add", patch[0].Op)
	})
}
