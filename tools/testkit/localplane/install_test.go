package localplane

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// webhookPolicy returns a policy that matches a resource and has one variable.
func webhookPolicy(resource, variable string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
		"metadata": map[string]any{"name": "p"},
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

	other, policy := webhookPolicy("mutatingwebhookconfigurations",
		"rules"), webhookPolicy("mutatingwebhookconfigurations", "urls")
	require.NoError(t, allowLocalURLs([]*unstructured.Unstructured{other, policy}))

	variables, _, err := unstructured.NestedSlice(policy.Object, "spec", "variables")
	require.NoError(t, err)
	require.Equal(t, []any{map[string]any{"name": "urls", "expression": "['https://127.0.0.1:', 'https://localhost:']"}},
		variables)
	require.Equal(t, webhookPolicy("mutatingwebhookconfigurations", "rules"), other)
}

// A policy that would refuse every webhook of this machine must not be installed in silence.
func TestRenamedVariableIsAnError(t *testing.T) {
	err := allowLocalURLs([]*unstructured.Unstructured{webhookPolicy("mutatingwebhookconfigurations", "addresses")})
	require.ErrorContains(t, err, "no ValidatingAdmissionPolicy of webhook configurations (p) has the variable urls")

	require.NoError(t, allowLocalURLs([]*unstructured.Unstructured{webhookPolicy("leases", "was")}),
		"it does not concern webhooks")
	require.NoError(t, allowLocalURLs(nil))
}

// TestPatchesAreNotIgnored: half of a kustomization would be something that nobody deploys.
func TestPatchesAreNotIgnored(t *testing.T) {
	dir := t.TempDir()
	content := "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nnamePrefix: my-\nresources: []\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(content), 0o600))
	_, err := readManifests(dir)
	require.ErrorContains(t, err, "only resources are supported")
	require.ErrorContains(t, err, `unknown field "namePrefix"`)
}

func TestNamesPath(t *testing.T) {
	for args, want := range map[string]bool{
		"etcd\x00--data-dir=/tmp/a/etcd\x00": true,
		"etcd\x00--data-dir=/tmp/a\x00":      true,
		"etcd /tmp/a":                        true,
		"etcd\x00/tmp/ab/tmp/a/x":            true,
		"etcd\x00--data-dir=/tmp/ab\x00":     false,
		"etcd":                               false,
	} {
		require.Equal(t, want, namesPath(args, "/tmp/a"), args)
	}
}
