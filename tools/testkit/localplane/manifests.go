package localplane

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// kustomization is the supported part of a kustomization.yaml. Other fields are an error: without their patches, the manifests would differ
// from those of a cluster.
type kustomization struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Resources  []string `json:"resources"`
}

// fromRoot makes a path absolute. Relative paths start at the root of the repository.
func fromRoot(path string) string {
	if filepath.IsAbs(path) {
		return path
	}

	return filepath.Join(Root(), path)
}

// Manifests returns the objects of a YAML file, or of a directory with a kustomization.yaml whose resources are followed. Relative paths start at
// the root of the repository.
func Manifests(path string) ([]*unstructured.Unstructured, error) {
	return readManifests(fromRoot(path))
}

// readManifests returns the objects of a YAML file, or of the resources that a directory's kustomization.yaml lists.
func readManifests(path string) ([]*unstructured.Unstructured, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("read manifests: %w", err)
	}

	if !info.IsDir() {
		return readFile(path)
	}

	file := filepath.Join(path, "kustomization.yaml")

	content, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read manifests: %w", err)
	}

	var k kustomization
	if err := yaml.UnmarshalStrict(content, &k); err != nil {
		return nil, fmt.Errorf("read %s (only resources are supported): %w", file, err)
	}

	var objects []*unstructured.Unstructured

	for _, resource := range k.Resources {
		found, err := readManifests(filepath.Join(path, resource))
		if err != nil {
			return nil, err
		}

		objects = append(objects, found...)
	}

	return objects, nil
}

// readFile returns the objects of one YAML file.
func readFile(path string) ([]*unstructured.Unstructured, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read manifests: %w", err)
	}

	var objects []*unstructured.Unstructured

	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(content)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}

		if err != nil {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}

		object := &unstructured.Unstructured{}
		if err := yaml.UnmarshalStrict(document, &object.Object); err != nil {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}

		if len(object.Object) == 0 {
			continue // comments only
		}

		if object.GetKind() == "" || object.GetName() == "" {
			return nil, fmt.Errorf("read %s: a document has no kind or no name", path)
		}

		objects = append(objects, object)
	}
}
