package manifests

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// Build returns the objects of the kustomization in a directory, as `kubectl kustomize` prints them.
func Build(dir string) ([]*unstructured.Unstructured, error) {
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		return nil, fmt.Errorf("build the kustomization in %s: %w", dir, err)
	}

	objects := make([]*unstructured.Unstructured, 0, built.Size())
	for _, resource := range built.Resources() {
		content, err := resource.MarshalJSON()
		if err != nil {
			return nil, fmt.Errorf("build the kustomization in %s: %w", dir, err)
		}

		object := &unstructured.Unstructured{}
		if err := json.Unmarshal(content, &object.Object); err != nil {
			return nil, fmt.Errorf("build the kustomization in %s: %w", dir, err)
		}

		objects = append(objects, object)
	}

	return objects, nil
}

// Find returns the sorted directories below root that contain a kustomization, except components, which cannot be built alone.
func Find(root string) ([]string, error) {
	var found []string

	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && entry.Name() == "components":
			return filepath.SkipDir
		case entry.Name() == "kustomization.yaml":
			found = append(found, filepath.Dir(path))
		}

		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("find kustomizations: %w", err)
	}
	slices.Sort(found)

	return found, nil
}
