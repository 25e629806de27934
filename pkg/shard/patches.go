package shard

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const versionPath = "/metadata/resourceVersion"

// keeper makes a patch of an object keep what the object carries. A patch that replaces all labels or annotations costs a request: the object is read,
// and either the patch names all that it removes, or it becomes conditional on the version that was read. Patches that no library computes, such as the
// move of all labels, are sent as they are.
type keeper struct {
	*clients

	read    func() (metav1.Object, error) // from the API server
	version string                        // the precondition that the patch needs
	changed bool
}

// keep returns the data of the patch so that the object keeps what it carries.
func (c *clients) keep(ctx context.Context, d declared, obj client.Object, patch client.Patch) ([]byte, error) {
	data, _ := patch.Data(obj) // a raw patch has no errors
	k := &keeper{clients: c, read: func() (metav1.Object, error) {
		kind := c.shard.kind(d.GroupKind, obj.GetNamespace())
		if kind == nil {
			return nil, fmt.Errorf("the kind %s is declared, but not registered", d.Kind)
		}

		live, err := kind.live(ctx, client.ObjectKeyFromObject(obj))
		if apierrors.IsNotFound(err) {
			return &metav1.PartialObjectMetadata{}, nil // the API server says so itself
		}

		return live, err
	}}

	kept, err := k.data(patch.Type(), data)
	if err != nil || !k.changed {
		return data, err
	}

	if k.version != "" {
		return withVersion(patch.Type(), kept, k.version)
	}

	return kept, nil
}

func (k *keeper) data(patchType types.PatchType, data []byte) (kept []byte, err error) {
	if patchType == types.ApplyYAMLPatchType {
		if data, err = yaml.ToJSON(data); err != nil {
			return nil, fmt.Errorf("decode the apply configuration: %w", err)
		}
	}

	switch patchType {
	case types.JSONPatchType:
		var operations []map[string]any
		if err := decode(data, &operations); err != nil {
			return nil, err
		}

		if operations, err = k.operations(operations); err != nil {
			return nil, err
		}

		return encoded(operations)
	case types.ApplyCBORPatchType:
		return data, nil
	default:
		var patch map[string]any
		if err := decode(data, &patch); err != nil {
			return nil, err
		}

		if err := k.fields(patchType, patch); err != nil {
			return nil, err
		}

		return encoded(patch)
	}
}

const directive = "$patch"

// fields changes a patch that has the form of the object.
func (k *keeper) fields(patchType types.PatchType, patch map[string]any) error {
	metadata, _ := patch["metadata"].(map[string]any)

	if patchType == types.StrategicMergePatchType && (patch[directive] == "replace" || metadata[directive] == "replace") {
		var err error

		patch["metadata"], err = k.replaced(metadata)

		return err
	}

	labels, annotations := k.keys.fields(ringMeta{})
	for _, f := range []field{labels, annotations} {
		value, ok := metadata[f.name]
		values, _ := value.(map[string]any)

		for _, p := range f.pairs {
			if _, ok := values[p.key]; ok {
				delete(values, p.key)

				k.changed = true
			}
		}

		all := ok && value == nil || values[directive] != nil
		if !all || patchType == types.ApplyYAMLPatchType {
			continue
		}

		var err error
		if metadata[f.name], err = k.named(f, values); err != nil {
			return err
		}
	}

	return nil
}

// named returns the values of a patch that removes all others by name, except for the ring's.
func (k *keeper) named(f field, values map[string]any) (map[string]any, error) {
	live, err := k.read()
	if err != nil {
		return nil, err
	}

	k.changed = true

	has := live.GetLabels()
	if f.name == "annotations" {
		has = live.GetAnnotations()
	}

	named := map[string]any{}

	for key := range with(has, f.pairs, true) {
		named[key] = nil
	}

	if values[directive] != "delete" {
		maps.Copy(named, values)
	}

	delete(named, directive)

	return named, nil
}

// replaced returns metadata that replaces all that the object has.
func (k *keeper) replaced(metadata map[string]any) (map[string]any, error) {
	live, err := k.read()
	if err != nil {
		return nil, err
	}

	k.changed, k.version = true, live.GetResourceVersion()

	return k.keys.in(metadata, k.keys.of(live), false), nil
}

// operations changes a JSON patch.
func (k *keeper) operations(operations []map[string]any) ([]map[string]any, error) {
	kept := make([]map[string]any, 0, len(operations))

	for _, o := range operations {
		path, _ := o["path"].(string)
		if k.touches(path) {
			k.changed = true
			continue
		}

		if o["op"] != "test" {
			if err := k.operation(path, o); err != nil {
				return nil, err
			}
		}

		kept = append(kept, o)
	}

	return kept, nil
}

// touches reports whether the path is that of one of the keys.
func (k *keeper) touches(path string) bool {
	labels, annotations := k.keys.fields(ringMeta{})
	for _, f := range []field{labels, annotations} {
		for _, p := range f.pairs {
			if path == "/metadata/"+f.name+"/"+strings.NewReplacer("~", "~0", "/", "~1").Replace(p.key) {
				return true
			}
		}
	}

	return false
}

func (k *keeper) operation(path string, o map[string]any) (err error) {
	value, _ := o["value"].(map[string]any)

	switch path {
	case "":
		if metadata, ok := value["metadata"].(map[string]any); ok {
			value["metadata"], err = k.replaced(metadata)
		}
	case "/metadata":
		o["value"], err = k.replaced(value)
	case "/metadata/labels", "/metadata/annotations":
		field := strings.TrimPrefix(path, "/metadata/")

		metadata, err := k.replaced(map[string]any{field: value})
		if err != nil {
			return err
		}

		if values, ok := metadata[field]; ok {
			o["value"] = values

			if o["op"] == "remove" {
				o["op"] = "replace"
			}
		}
	}

	return err
}

// withVersion adds the version to the patch as a precondition, unless the patch has one.
func withVersion(patchType types.PatchType, data []byte, version string) (conditional []byte, err error) {
	switch patchType {
	case types.JSONPatchType:
		return withVersionOperation(data, version)
	case types.ApplyCBORPatchType:
		return data, nil
	case types.ApplyYAMLPatchType:
		if data, err = yaml.ToJSON(data); err != nil {
			return nil, fmt.Errorf("decode the apply configuration: %w", err)
		}
	case types.MergePatchType, types.StrategicMergePatchType:
	}

	var patch map[string]any
	if err := decode(data, &patch); err != nil {
		return nil, err
	}

	metadata, _ := patch["metadata"].(map[string]any)
	if _, ok := metadata["resourceVersion"]; ok {
		return data, nil
	}

	if patch == nil {
		patch = map[string]any{}
	}

	if metadata == nil {
		metadata = map[string]any{}
	}

	metadata["resourceVersion"] = version
	patch["metadata"] = metadata

	return encoded(patch)
}

// withVersionOperation sets the version instead of testing it: for the API server, a failed test is an invalid request, but a
// different version is a conflict.
func withVersionOperation(data []byte, version string) ([]byte, error) {
	var operations []map[string]any
	if err := decode(data, &operations); err != nil {
		return nil, err
	}

	for _, o := range operations {
		if o["path"] == versionPath {
			return data, nil
		}
	}

	first := map[string]any{"op": "replace", "path": versionPath, "value": version}

	return encoded(append([]map[string]any{first}, operations...))
}

// decode decodes a patch and keeps its numbers as they are.
func decode(data []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()

	if err := d.Decode(into); err != nil {
		return fmt.Errorf("decode the patch: %w", err)
	}

	return nil
}

func encoded(v any) ([]byte, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode the patch: %w", err)
	}

	return data, nil
}
