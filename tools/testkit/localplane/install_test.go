package localplane

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPatchesAreNotIgnored: half of a kustomization would be something that nobody deploys.
func TestPatchesAreNotIgnored(t *testing.T) {
	dir := t.TempDir()
	content := "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nnamePrefix: my-\nresources: []\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(content), 0o600))
	_, err := Manifests(dir)
	require.ErrorContains(t, err, "only resources are supported")
	require.ErrorContains(t, err, `unknown field "namePrefix"`)
}
