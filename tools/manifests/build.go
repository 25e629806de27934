// Package manifests builds the kustomizations of deploy/ as kubectl does.
//
// Its tests check every one of them: each pod conforms to the restricted Pod Security Standard, and has probes,
// resource requests, and enough time to stop; references by name or label are valid; programs accept their flags. They
// also keep the generated parts of docs up to date (go test -update): tables of flags, and docs/proofs.md from
// docs/proofs.txt.
package manifests

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/resmap"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// building is held while kustomize builds: it reads its schemas once, without a lock.
var building sync.Mutex

func build(dir string, options *krusty.Options) (resmap.ResMap, error) {
	building.Lock()
	defer building.Unlock()

	built, err := krusty.MakeKustomizer(options).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		return nil, fmt.Errorf("build the kustomization in %s: %w", dir, err)
	}

	return built, nil
}

// Text returns what `kubectl kustomize` prints of a directory, in the order in which `kubectl apply -k` creates it. It
// is safe for concurrent use.
func Text(dir string) (string, error) {
	options := krusty.MakeDefaultOptions()
	options.Reorder = krusty.ReorderOptionLegacy

	built, err := build(dir, options)
	if err != nil {
		return "", err
	}

	text, err := built.AsYaml()
	if err != nil {
		return "", fmt.Errorf("print the kustomization in %s: %w", dir, err)
	}

	return string(text), nil
}

// Build returns the objects of the kustomization in a directory, as `kubectl kustomize` prints them. It is safe for
// concurrent use.
func Build(dir string) ([]*unstructured.Unstructured, error) {
	built, err := build(dir, krusty.MakeDefaultOptions())
	if err != nil {
		return nil, err
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

// Combine returns the objects of deploy/base below root with components of deploy/components, as a user's kustomization
// combines them. The images replace those of the base: each is an entry of the images of a kustomization.
func Combine(root string, images []map[string]string,
	components ...string) (objects []*unstructured.Unstructured, err error) {
	deploy, err := filepath.Abs(filepath.Join(root, "deploy"))
	if err != nil {
		return nil, fmt.Errorf("find the manifests: %w", err)
	}

	dir, err := os.MkdirTemp("", "combine-")
	if err != nil {
		return nil, fmt.Errorf("make a directory for a kustomization: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	// Paths in a kustomization are relative, and without links.
	relative := func(path string) string {
		from, _ := filepath.EvalSymlinks(dir)
		to, _ := filepath.EvalSymlinks(deploy)
		found, _ := filepath.Rel(from, filepath.Join(to, path)) // an error shows when it is built

		return found
	}

	k := map[string]any{"images": images, "resources": []string{relative("base")}}

	var found []string
	for _, component := range components {
		found = append(found, relative(filepath.Join("components", component)))
	}

	k["components"] = found

	content, err := json.Marshal(k)
	if err != nil {
		return nil, fmt.Errorf("write a kustomization: %w", err)
	}

	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), content, 0o600); err != nil {
		return nil, fmt.Errorf("write a kustomization: %w", err)
	}

	return Build(dir)
}
