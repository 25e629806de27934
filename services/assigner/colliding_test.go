package assigner_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

// TestCollidingRings: names that are long enough can be searched until two rings share all that follows from their names. The older one works.
func TestCollidingRings(t *testing.T) {
	const first, second = "colliding-rings-of-a-very-long-name-abcdef-27184", "colliding-rings-of-a-very-long-name-abcdef-727"
	require.Equal(t, contract.RingSuffix(first), contract.RingSuffix(second))

	older := newFenced(t, first, v1alpha1.FenceEnforce)
	start(t, older.Plane)
	older.registered()
	older.reports("True Enforced")

	younger := newFixture(t, second, "y")
	younger.changeRing(func(r *v1alpha1.ClusterRing) { r.Spec.Fence = older.ring().Spec.Fence })
	eventually(t, func() bool { return younger.reason() == "False ShardLabelInUse" }, "the younger ring is refused")
	require.Contains(t, younger.registration(), "ring "+first+", which is older, has the same suffix "+contract.RingSuffix(second))
	require.Contains(t, younger.registration(), "another name")

	require.Empty(t, younger.create(younger.website(unique("site"))).GetLabels())

	before := older.configuration()
	require.Equal(t, first, before.Labels[contract.LabelClusterRing])

	fence := func() *admissionregistrationv1.ValidatingAdmissionPolicyBinding {
		b := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{}
		require.NoError(t, older.Client.Get(t.Context(), client.ObjectKey{Name: contract.FenceName(first)}, b))

		return b
	}
	uid := fence().UID

	// What the younger one leaves is the older one's.
	require.NoError(t, younger.Client.Delete(t.Context(), younger.ring()))

	other := newFixture(t, "after-the-collision", "x")
	other.registered()
	require.Equal(t, before.ResourceVersion, older.configuration().ResourceVersion)
	require.Equal(t, uid, fence().UID)
	require.Equal(t, first, fence().Labels[contract.LabelClusterRing])
}
