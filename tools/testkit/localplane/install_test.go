package localplane

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// webhookPolicy returns a policy that matches a resource and has one variable.
func webhookPolicy(resource, variable string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": map[string]any{"name": "p"},
		"spec": map[string]any{
			"matchConstraints": map[string]any{"resourceRules": []any{map[string]any{"resources": []any{resource}}}},
			"variables":        []any{map[string]any{"name": variable, "expression": "[]"}},
		},
	}}
}

func TestLocalURLsAreAllowed(t *testing.T) {
	objects, err := readManifests(fromRoot("deploy/base"))
	require.NoError(t, err)
	require.NoError(t, allowLocalURLs(objects))

	other, policy := webhookPolicy("mutatingwebhookconfigurations", "rules"), webhookPolicy("mutatingwebhookconfigurations", "urls")
	require.NoError(t, allowLocalURLs([]*unstructured.Unstructured{other, policy}))

	variables, _, err := unstructured.NestedSlice(policy.Object, "spec", "variables")
	require.NoError(t, err)
	require.Equal(t, []any{map[string]any{"name": "urls", "expression": "['https://127.0.0.1:', 'https://localhost:']"}}, variables)
	require.Equal(t, webhookPolicy("mutatingwebhookconfigurations", "rules"), other)
}

// A policy that would refuse every webhook of this machine must not be installed in silence.
func TestRenamedVariableIsAnError(t *testing.T) {
	err := allowLocalURLs([]*unstructured.Unstructured{webhookPolicy("mutatingwebhookconfigurations", "addresses")})
	require.ErrorContains(t, err, "no ValidatingAdmissionPolicy of webhook configurations (p) has the variable urls")

	require.NoError(t, allowLocalURLs([]*unstructured.Unstructured{webhookPolicy("leases", "was")}), "it does not concern webhooks")
	require.NoError(t, allowLocalURLs(nil))
}
