package manifests_test

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/clusterring/clusterring/tools/manifests"
)

// TestGuardCoversTheBase: all that deploy/base installs carries the label that the policy against an early removal selects, and is of
// a kind that it names; policies are the exception, for no policy is asked about policies.
func TestGuardCoversTheBase(t *testing.T) {
	objects, err := manifests.Build(filepath.Join(root, "deploy/base"))
	require.NoError(t, err)

	i := slices.IndexFunc(objects, func(o *unstructured.Unstructured) bool {
		return o.GetKind() == "ValidatingAdmissionPolicy" && o.GetName() == "removal.sharding.timebertt.dev"
	})
	require.NotEqual(t, -1, i, "there is no guard")

	var policy admissionregistrationv1.ValidatingAdmissionPolicy
	require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(objects[i].Object, &policy, true))
	match := policy.Spec.MatchConstraints

	for _, o := range objects {
		for key, value := range match.ObjectSelector.MatchLabels {
			require.Equal(t, value, o.GetLabels()[key], "label %s of %s %s", key, o.GetKind(), o.GetName())
		}

		resource, _ := meta.UnsafeGuessKindToResource(o.GroupVersionKind())
		covered := slices.ContainsFunc(match.ResourceRules, func(r admissionregistrationv1.NamedRuleWithOperations) bool {
			return slices.Contains(r.APIGroups, resource.Group) && slices.Contains(r.Resources, resource.Resource) &&
				slices.Contains(r.Operations, admissionregistrationv1.Delete)
		})
		require.Equal(t, resource.Group != admissionregistrationv1.GroupName, covered, "%s %s", o.GetKind(), o.GetName())
	}
}
