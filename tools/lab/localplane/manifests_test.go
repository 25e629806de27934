package localplane

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

// TestManifestsDecodeStrictly finds misspelt fields, and files that no kustomization.yaml names.
func TestManifestsDecodeStrictly(t *testing.T) {
	scheme := runtime.NewScheme()
	require.NoError(t, errors.Join(clientgoscheme.AddToScheme(scheme), apiextensionsv1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)))
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()

	for _, top := range []string{"deploy/base", "deploy/example"} {
		objects, err := readManifests(fromRoot(top))
		require.NoError(t, err)
		require.NotEmpty(t, objects)

		inFiles := 0
		require.NoError(t, filepath.WalkDir(fromRoot(top), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || entry.Name() == "kustomization.yaml" {
				return err
			}

			found, err := readFile(path)
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
