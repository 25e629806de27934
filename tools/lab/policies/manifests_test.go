package policies_test

import (
	"encoding/json"
	"errors"
	"io/fs"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

// TestManifestsDecodeStrictly finds misspelt fields, and files that no kustomization.yaml names.
func TestManifestsDecodeStrictly(t *testing.T) {
	scheme := runtime.NewScheme()
	require.NoError(t, errors.Join(clientgoscheme.AddToScheme(scheme), apiextensionsv1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)))
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()

	for _, top := range []string{"deploy/base", "deploy/example"} {
		objects, err := localplane.Manifests(top)
		require.NoError(t, err)
		require.NotEmpty(t, objects)

		inFiles := 0
		require.NoError(t, filepath.WalkDir(filepath.Join(localplane.Root(), top), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || entry.Name() == "kustomization.yaml" {
				return err
			}

			found, err := localplane.Manifests(path)
			inFiles += len(found)

			return err
		}))
		require.Len(t, objects, inFiles, "a manifest in %s is in no kustomization.yaml, or in two", top)

		for _, o := range objects {
			content, err := json.Marshal(o.Object)
			require.NoError(t, err)
			_, _, err = decoder.Decode(content, nil, nil)
			require.NoErrorf(t, err, "%s %s of %s", o.GetKind(), o.GetName(), top)
		}
	}
}
