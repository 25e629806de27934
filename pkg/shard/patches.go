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

	patchType  types.PatchType
	fields     map[string]any   // of a patch that has the form of the object
	operations []map[string]any // of a JSON patch
	version    string           // the precondition that a patch of all labels or annotations needs
	read       func() (metav1.Object, error)
}

// body returns the content of a patch. The function reads the object from the API server.
func (c *clients) body(patchType types.PatchType, data []byte, read func() (metav1.Object, error)) (b *body, err error) {
	b = &body{clients: c, patchType: patchType, read: read}

	if patchType == types.ApplyYAMLPatchType {
		if data, err = yaml.ToJSON(data); err != nil {
			return nil, fmt.Errorf("decode the apply configuration: %w", err)
		}
	}

	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber() // numbers stay as they are

	if err = d.Decode(b.content()); err != nil {
		return nil, fmt.Errorf("decode the patch: %w", err)
	}

	return b, nil
}

// content returns what is encoded in the data of the patch.
func (b *body) content() any {
	if b.patchType == types.JSONPatchType {
		return &b.operations
	}

	return &b.fields
}

// encoded returns the data of the patch.
func (b *body) encoded() ([]byte, error) {
	data, err := json.Marshal(b.content())
	if err != nil {
		return nil, fmt.Errorf("encode the patch: %w", err)
	}

	return data, nil
}

// keep makes the object keep what it carries.
func (b *body) keep() error {
	if b.patchType == types.JSONPatchType {
		return b.keepOperations()
	}

	return b.keepFields()
}

const versionPath = "/metadata/resourceVersion"

// requires makes the version a precondition, unless the patch has one. An operation sets the version instead of testing it: for the API server, a failed
// test is an invalid request, but a different version is a conflict.
func (b *body) requires(version string) {
	if b.patchType == types.JSONPatchType {
		if !slices.ContainsFunc(b.operations, func(o map[string]any) bool { return o["path"] == versionPath }) {
			b.operations = slices.Insert(b.operations, 0, map[string]any{"op": "replace", "path": versionPath, "value": version})
		}

		return
	}

	metadata, _ := b.fields["metadata"].(map[string]any)
	if _, has := metadata["resourceVersion"]; has {
		return
	}

	if metadata == nil {
		metadata = map[string]any{}
	}

	if metadata["resourceVersion"] = version; b.fields == nil {
		b.fields = map[string]any{}
	}

	b.fields["metadata"] = metadata
}

const directive = "$patch"

// keepFields changes a patch that has the form of the object.
func (b *body) keepFields() (err error) {
	metadata, _ := b.fields["metadata"].(map[string]any)

	if b.patchType == types.StrategicMergePatchType && (b.fields[directive] == "replace" || metadata[directive] == "replace") {
		b.fields["metadata"], err = b.replaced(metadata)

		return err
	}

	for _, f := range b.keys.fields(ringMeta{}) {
		value, ok := metadata[f.name]
		values, _ := value.(map[string]any)

		for _, p := range f.pairs {
			delete(values, p.key)
		}

		all := ok && value == nil || values[directive] != nil
		if !all || b.patchType == types.ApplyYAMLPatchType {
			continue
		}

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

	named := map[string]any{}

	for key := range with(f.get(live), f.pairs, true) {
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

	b.version = live.GetResourceVersion()

	metadata = b.keys.in(metadata, b.keys.of(live), false)
	if _, has := metadata["resourceVersion"]; !has && b.version != "" {
		metadata["resourceVersion"] = b.version // without one, the patch would be unconditional
	}

	return metadata, nil
}

// keepOperations changes a JSON patch.
func (b *body) keepOperations() error {
	b.operations = slices.DeleteFunc(b.operations, func(o map[string]any) bool { return b.touches(o["path"]) })

	for _, o := range b.operations {
		if o["op"] == "test" {
			continue
		}

		if err := b.operation(o); err != nil {
			return err
		}
	}

	if b.version != "" {
		b.requires(b.version)
	}

	return nil
}

// touches reports whether the path is that of one of the keys.
func (b *body) touches(path any) bool {
	for _, f := range b.keys.fields(ringMeta{}) {
		for _, p := range f.pairs {
			if path == "/metadata/"+f.name+"/"+strings.NewReplacer("~", "~0", "/", "~1").Replace(p.key) {
				return true
			}
		}
	}

	return false
}

// operation changes an operation that replaces all labels or annotations.
func (b *body) operation(o map[string]any) (err error) {
	value, _ := o["value"].(map[string]any)

	switch path, _ := o["path"].(string); path {
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
