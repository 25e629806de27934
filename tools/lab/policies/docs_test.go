package policies_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

// TestObjectsOfDocs: the API server takes every object that a page shows, without a field that it does not know.
func TestObjectsOfDocs(t *testing.T) {
	p := localplane.Shared(t)
	require.NoError(t, p.Install(t.Context(), "deploy/example/namespace.yaml")) // the namespace of the pages

	pages, err := filepath.Glob("../../../docs/*.md")
	require.NoError(t, err)

	taken := 0

	for _, page := range append(pages, "../../../README.md") {
		content, err := os.ReadFile(page) //nolint:gosec // a page of the repository
		require.NoError(t, err)

		for _, block := range strings.Split(string(content), "\n```yaml\n")[1:] {
			block, _, _ = strings.Cut(block, "\n```\n")
			object := &unstructured.Unstructured{}
			require.NoError(t, yaml.UnmarshalStrict([]byte(block), &object.Object), "%s: %s", page, block)

			if object.GetKind() == "Kustomization" {
				continue // kubectl's, not the API server's
			}
			require.NoError(t, p.Client.Create(t.Context(), object, client.DryRunAll, client.FieldValidation("Strict")), "%s: %s", page, block)
			taken++
		}
	}
	require.Positive(t, taken)
}
