package admission

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/clusterring/clusterring/tools/load/internal/run"
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
	require.Equal(t, []string{cpuSeries}, idsAt(10))
	require.Equal(t, []string{cpuSeries, "admission-cpu-3", "admission-creates-3"}, idsAt(3))
	require.Contains(t, idsAt(50), http1Row)

	seen := map[string]bool{}
	for _, m := range Measurements() {
		require.Positive(t, m.Budget[run.Small])
		require.Greater(t, m.Budget[run.Full], m.Budget[run.Small])
		for _, id := range m.IDs {
			require.False(t, seen[id], id)
			seen[id] = true
		}
	}
	require.Len(t, seen, 9)
}

func TestTogether(t *testing.T) {
	turn := creation{objects: 10, took: time.Second, server: 20 * time.Microsecond}
	turns := func(n int) []creation {
		var all []creation
		for range n {
			all = append(all, turn)
		}
		return all
	}
	sizes := func(rounds []creation) []int {
		var all []int
		for _, r := range rounds {
			all = append(all, r.objects)
		}
		return all
	}
	require.Empty(t, together(nil, 3))
	require.Equal(t, []int{10}, sizes(together(turns(1), 3)))
	require.Equal(t, []int{30}, sizes(together(turns(3), 3)))
	require.Equal(t, []int{50}, sizes(together(turns(5), 3)))
	require.Equal(t, []int{30, 30}, sizes(together(turns(6), 3)))
	require.Equal(t, []int{30, 40}, sizes(together(turns(7), 3)))

	round := together(turns(3), 3)[0]
	require.InDelta(t, 10, round.perSecond(), 1e-9)
	require.InDelta(t, 2, round.serverCPU(), 1e-9)
	require.Equal(t, "10 creates/s", round.String())
}
