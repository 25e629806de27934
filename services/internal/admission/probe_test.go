package admission_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/admission"
)

func TestAProbeIsAnsweredByAReplicaThatDoesNotKnowTheRing(t *testing.T) {
	answer := admission.Decide(t.Context(), nil, &admission.Request{
		Ring: "example", Operation: admission.Update, SubResource: "status",
		Resource: schema.GroupResource{Group: v1alpha1.GroupVersion.Group, Resource: "clusterrings"},
	}, nil)
	require.Equal(t, admission.Answer{Outcome: admission.Probed, Warning: admission.Arrived}, answer)
}
