package contract

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestHandover(t *testing.T) {
	pods, jobs := schema.GroupResource{Resource: "pods"}, schema.GroupResource{Group: "batch", Resource: "jobs"}

	h := Handover{}
	require.Empty(t, h.String())

	h.Reached(pods, "9")
	h.Reached(pods, "10")
	h.Reached(pods, "8")
	h.Reached(jobs, "opaque")
	h.Reached(jobs, "other")
	require.Equal(t, Handover{pods: "10", jobs: "other"}, h)
	require.JSONEq(t, `{"pods":"10","jobs.batch":"other"}`, h.String())

	again, err := ParseHandover(h.String())
	require.NoError(t, err)
	require.Equal(t, h, again)

	none, err := ParseHandover("")
	require.NoError(t, err)
	require.Empty(t, none)

	for _, wrong := range []string{"x", "[]", `{"pods":1}`, `{"pods":""}`, `{"":"1"}`} {
		_, err := ParseHandover(wrong)
		require.ErrorIs(t, err, errHandover, wrong)
	}
}
