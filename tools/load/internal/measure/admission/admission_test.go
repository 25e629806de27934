package admission

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
)

// Reviews are what an API server sends: of distinct objects, about 2 kB each.
func TestReviews(t *testing.T) {
	bodies, err := reviews("n", 3)
	require.NoError(t, err)

	seen := map[string]bool{}

	for _, body := range bodies {
		var review admissionv1.AdmissionReview
		require.NoError(t, json.Unmarshal(body, &review))
		require.Equal(t, "admission.k8s.io/v1", review.APIVersion)
		require.Equal(t, admissionv1.Create, review.Request.Operation)

		var object corev1.ConfigMap
		require.NoError(t, json.Unmarshal(review.Request.Object.Raw, &object))
		require.Equal(t, review.Request.Name, object.Name)
		require.Equal(t, "n", object.Namespace)
		require.NotEmpty(t, object.ManagedFields)
		require.InDelta(t, 2000, len(body), 1000)
		require.False(t, seen[object.Name] || seen[string(review.Request.UID)])
		seen[object.Name], seen[string(review.Request.UID)] = true, true
	}
}

// Turns of a round count by their median.
func TestTogether(t *testing.T) {
	require.Empty(t, together(nil, 3))

	var turns []creation
	for i := range 7 {
		turns = append(turns, creation{rate: float64(i), server: float64(10 * i)})
	}
	require.Equal(t, []creation{{1, 10}, {4, 40}, {6, 60}}, together(turns, 3))
}
