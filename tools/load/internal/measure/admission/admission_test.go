package admission

import (
	"encoding/json"
	"testing"
	"time"

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

func TestIDs(t *testing.T) {
	rowsAt := func(size int) (ids []string) {
		for _, part := range new(experiment).at(size) {
			ids = append(ids, part.Rows...)
		}

		return ids
	}

	require.Empty(t, rowsAt(10))
	require.Equal(t, []string{"admission-cpu-50", "admission-creates-50"}, rowsAt(50))

	seen := map[string]bool{}

	for _, m := range Measurements() {
		require.Positive(t, m.Small)
		require.Greater(t, m.Full, m.Small)

		for _, part := range m.Parts {
			for _, id := range part.Rows {
				require.False(t, seen[id], id)
				seen[id] = true
			}
		}
	}
	require.Len(t, seen, 5)
}

func TestTogether(t *testing.T) {
	turns := func(n int) (all []creation) {
		for i := range n {
			all = append(all, creation{objects: 10, took: time.Duration(i+1) * time.Second, server: 0.02})
		}

		return all
	}
	sizes := func(rounds [][]creation) (all []int) {
		for _, r := range rounds {
			all = append(all, len(r))
		}

		return all
	}
	require.Empty(t, together(nil, 3))

	for n, want := range map[int][]int{1: {1}, 3: {3}, 5: {5}, 6: {3, 3}, 7: {3, 4}} {
		require.Equal(t, want, sizes(together(turns(n), 3)), n)
	}

	rounds := together(turns(6), 3)
	require.Equal(t, []float64{5, 2}, rates(rounds), "the median of turns of 1, 2 and 3 s, and of 4, 5 and 6 s")
	require.Equal(t, []float64{2, 2}, serverCPU(rounds))
	require.Equal(t, "10 creates/s", rounds[0][0].String())
}
