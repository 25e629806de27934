package shard

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// body is the content of a patch, which can be changed so that the object keeps what it carries. A patch that replaces all labels or annotations costs
// a request: the object is read, and either the patch names all that it removes, or it becomes conditional on the version that was read. Patches that no
// library computes, such as the move of all labels, are sent as they are, and so are those in CBOR.
type body struct {
	*clients

	patchType types.PatchType
	data      []byte
	content   any    // map[string]any, or []map[string]any of a JSON patch
	changed   bool   // content is not what data is
	version   string // the precondition that a patch of all labels or annotations needs
	read      func() (metav1.Object, error)
}

// body returns the content of a patch. The function reads the object from the API server.
func (c *clients) body(patchType types.PatchType, data []byte, read func() (metav1.Object, error)) (b *body, err error) {
	b = &body{clients: c, patchType: patchType, data: data, read: read}

	if patchType == types.ApplyCBORPatchType {
		return b, nil
	}

	if patchType == types.ApplyYAMLPatchType {
		if data, err = yaml.ToJSON(data); err != nil {
			return nil, fmt.Errorf("decode the apply configuration: %w", err)
		}
	}

	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber() // numbers stay as they are

	if patchType == types.JSONPatchType {
		var operations []map[string]any

		err = d.Decode(&operations)
		b.content = operations
	} else {
		var fields map[string]any

		err = d.Decode(&fields)
		b.content = fields

		if fields == nil {
			b.content = map[string]any{}
		}
	}

	if err != nil {
		return nil, fmt.Errorf("decode the patch: %w", err)
	}

	return b, nil
}

// encoded returns the data of the patch.
func (b *body) encoded() ([]byte, error) {
	if !b.changed {
		return b.data, nil
	}

	data, err := json.Marshal(b.content)
	if err != nil {
		return nil, fmt.Errorf("encode the patch: %w", err)
	}

	return data, nil
}

// keep makes the object keep what it carries.
func (b *body) keep() (err error) {
	switch content := b.content.(type) {
	case map[string]any:
		err = b.keepFields(content)
	case []map[string]any:
		b.content, err = b.keepOperations(content)
	}

	if b.version != "" {
		b.requires(b.version)
	}

	return err
}

const versionPath = "/metadata/resourceVersion"

// requires makes the version a precondition, unless the patch has one. An operation sets the version instead of testing it: for the API server, a failed
// test is an invalid request, but a different version is a conflict.
func (b *body) requires(version string) {
	switch content := b.content.(type) {
	case map[string]any:
		metadata, _ := content["metadata"].(map[string]any)
		if _, has := metadata["resourceVersion"]; has {
			return
		}

		if metadata == nil {
			metadata = map[string]any{}
		}

		metadata["resourceVersion"], content["metadata"], b.changed = version, metadata, true
	case []map[string]any:
		if !slices.ContainsFunc(content, func(o map[string]any) bool { return o["path"] == versionPath }) {
			b.content = slices.Insert(content, 0, map[string]any{"op": "replace", "path": versionPath, "value": version})
			b.changed = true
		}
	}
}

const directive = "$patch"

// keepFields changes a patch that has the form of the object.
func (b *body) keepFields(patch map[string]any) error {
	metadata, _ := patch["metadata"].(map[string]any)

	if b.patchType == types.StrategicMergePatchType && (patch[directive] == "replace" || metadata[directive] == "replace") {
		var err error

		patch["metadata"], err = b.replaced(metadata)

		return err
	}

	labels, annotations := b.keys.fields(ringMeta{})
	for _, f := range []field{labels, annotations} {
		value, ok := metadata[f.name]
		values, _ := value.(map[string]any)

		for _, p := range f.pairs {
			if _, ok := values[p.key]; ok {
				delete(values, p.key)

				b.changed = true
			}
		}

		all := ok && value == nil || values[directive] != nil
		if !all || b.patchType == types.ApplyYAMLPatchType {
			continue
		}

		var err error
		if metadata[f.name], err = b.named(f, values); err != nil {
			return err
		}
	}

	return nil
}

// named returns the values of a patch that removes all others by name, except for the ring's.
func (b *body) named(f field, values map[string]any) (map[string]any, error) {
	live, err := b.read()
	if err != nil {
		return nil, err
	}

	b.changed = true

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
func (b *body) replaced(metadata map[string]any) (map[string]any, error) {
	live, err := b.read()
	if err != nil {
		return nil, err
	}

	b.changed, b.version = true, live.GetResourceVersion()

	metadata = b.keys.in(metadata, b.keys.of(live), false)
	if _, has := metadata["resourceVersion"]; !has && b.version != "" {
		metadata["resourceVersion"] = b.version // without one, the patch would be unconditional
	}

	return metadata, nil
}

// keepOperations changes a JSON patch.
func (b *body) keepOperations(operations []map[string]any) ([]map[string]any, error) {
	kept := make([]map[string]any, 0, len(operations))

	for _, o := range operations {
		path, _ := o["path"].(string)
		if b.touches(path) {
			b.changed = true
			continue
		}

		if o["op"] != "test" {
			if err := b.operation(path, o); err != nil {
				return nil, err
			}
		}

		kept = append(kept, o)
	}

	return kept, nil
}

// touches reports whether the path is that of one of the keys.
func (b *body) touches(path string) bool {
	labels, annotations := b.keys.fields(ringMeta{})
	for _, f := range []field{labels, annotations} {
		for _, p := range f.pairs {
			if path == "/metadata/"+f.name+"/"+strings.NewReplacer("~", "~0", "/", "~1").Replace(p.key) {
				return true
			}
		}
	}

	return false
}

func (b *body) operation(path string, o map[string]any) (err error) {
	value, _ := o["value"].(map[string]any)

	switch path {
	case "":
		if metadata, ok := value["metadata"].(map[string]any); ok {
			value["metadata"], err = b.replaced(metadata)
		}
	case "/metadata":
		o["value"], err = b.replaced(value)
	case "/metadata/labels", "/metadata/annotations":
		field := strings.TrimPrefix(path, "/metadata/")

		metadata, err := b.replaced(map[string]any{field: value})
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
