package shard

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

// ringMeta is what an object carries of the ring: the values of its keys, nil for those that are missing.
type ringMeta struct{ shard, drain, handover, held *string }

func (m ringMeta) equal(o ringMeta) bool {
	return ptr.Equal(m.shard, o.shard) && ptr.Equal(m.drain, o.drain) && ptr.Equal(m.handover, o.handover) &&
		ptr.Equal(m.held, o.held)
}

// ringKeys reads and writes the keys of the ring in objects. If others have the maps too, it writes into new ones.
type ringKeys contract.LabelKeys

// field is a field of metadata with the ring's keys in it; the value is nil for none.
type field struct {
	name  string
	get   func(metav1.Object) map[string]string
	set   func(metav1.Object, map[string]string)
	pairs []pair
}

type pair struct {
	key   string
	value *string
}

func (k ringKeys) fields(m ringMeta) []field {
	return []field{
		{"labels", metav1.Object.GetLabels, metav1.Object.SetLabels, []pair{{k.Shard, m.shard}, {k.Drain, m.drain}}},
		{"annotations", metav1.Object.GetAnnotations, metav1.Object.SetAnnotations,
			[]pair{{k.Handover, m.handover}, {k.Held, m.held}}},
	}
}

func (k ringKeys) of(obj metav1.Object) (m ringMeta) {
	if u, ok := obj.(runtime.Unstructured); ok { // its accessors copy
		metadata, _ := u.UnstructuredContent()["metadata"].(map[string]any)
		labels, _ := metadata["labels"].(map[string]any)
		annotations, _ := metadata["annotations"].(map[string]any)

		return ringMeta{valueOf(labels, k.Shard), valueOf(labels, k.Drain), valueOf(annotations, k.Handover),
			valueOf(annotations, k.Held)}
	}

	labels, annotations := obj.GetLabels(), obj.GetAnnotations()

	return ringMeta{valueOf(labels, k.Shard), valueOf(labels, k.Drain), valueOf(annotations, k.Handover),
		valueOf(annotations, k.Held)}
}

func valueOf[V any](m map[string]V, key string) *string {
	v, ok := m[key]
	if !ok {
		return nil
	}

	s, _ := any(v).(string)

	return &s
}

func (k ringKeys) set(obj metav1.Object, m ringMeta, shared bool) {
	if u, ok := obj.(runtime.Unstructured); ok {
		content := u.UnstructuredContent()
		if shared {
			content = maps.Clone(content)
		}

		metadata, _ := content["metadata"].(map[string]any)
		content["metadata"] = k.in(metadata, m, shared)
		u.SetUnstructuredContent(content)

		return
	}

	for _, f := range k.fields(m) {
		f.set(obj, with(f.get(obj), f.pairs, shared))
	}
}

func (k ringKeys) in(metadata map[string]any, m ringMeta, shared bool) map[string]any {
	if shared {
		metadata = maps.Clone(metadata)
	}

	if metadata == nil {
		metadata = map[string]any{}
	}

	for _, f := range k.fields(m) {
		values, _ := metadata[f.name].(map[string]any)
		if values = with(values, f.pairs, shared); values != nil {
			metadata[f.name] = values
		} else {
			delete(metadata, f.name)
		}
	}

	return metadata
}

// with returns the map, or a copy if it is shared, with exactly these pairs of their keys; nil if it would be empty.
func with[V any](m map[string]V, pairs []pair, shared bool) map[string]V {
	if shared {
		m = maps.Clone(m)
	}

	for _, p := range pairs {
		if p.value == nil {
			delete(m, p.key)
			continue
		}

		if m == nil {
			m = map[string]V{}
		}

		m[p.key], _ = any(*p.value).(V)
	}

	if len(m) == 0 {
		return nil
	}

	return m
}

func (k ringKeys) hide(obj metav1.Object, shared bool) {
	if k.of(obj) != (ringMeta{}) {
		k.set(obj, ringMeta{}, shared)
	}
}

func (k ringKeys) hidden(obj any) any {
	switch obj := obj.(type) {
	case toolscache.DeletedFinalStateUnknown:
		obj.Obj = k.hidden(obj.Obj)
		return obj
	case client.Object:
		if k.of(obj) == (ringMeta{}) {
			return obj
		}

		shallow := reflect.New(reflect.TypeOf(obj).Elem())
		shallow.Elem().Set(reflect.ValueOf(obj).Elem())
		hidden, _ := reflect.TypeAssert[client.Object](shallow)
		k.set(hidden, ringMeta{}, true)

		return hidden
	default:
		return obj
	}
}

// each calls the function with each object of a list, and then hides its keys. Pointers can be those of a cache.
func (k ringKeys) each(list client.ObjectList, shared bool, seen func(client.Object)) error {
	pointer, err := meta.GetItemsPtr(list)
	if err != nil {
		return err //nolint:wrapcheck // it names the list
	}

	items := reflect.ValueOf(pointer).Elem()
	for i := range items.Len() {
		item := items.Index(i)
		if item.Kind() == reflect.Struct {
			if obj, ok := reflect.TypeAssert[client.Object](item.Addr()); ok {
				seen(obj)
				k.hide(obj, shared)
			}
		} else if obj, ok := reflect.TypeAssert[client.Object](item); ok {
			seen(obj)
			item.Set(reflect.ValueOf(k.hidden(obj)))
		}
	}

	return nil
}

type ringCache struct {
	ringReader
	innerCache
}

// innerCache is embedded one level deeper than the reader, whose methods take precedence.
type innerCache struct{ cache.Cache }

func (c *ringCache) GetInformer(
	ctx context.Context, obj client.Object, opts ...cache.InformerGetOption,
) (cache.Informer, error) {
	informer, err := c.Cache.GetInformer(ctx, obj, opts...)

	return c.informer(informer, c.checks.sort(obj)), err
}

func (c *ringCache) GetInformerForKind(
	ctx context.Context, gvk schema.GroupVersionKind, opts ...cache.InformerGetOption,
) (cache.Informer, error) {
	informer, err := c.Cache.GetInformerForKind(ctx, gvk, opts...)

	return c.informer(informer, c.checks.sort(gvk)), err
}

func (c *ringCache) informer(informer cache.Informer, d sort) cache.Informer {
	if informer == nil || !c.hides(d) {
		return informer
	}

	return &ringInformer{Informer: informer, keys: c.keys}
}

func (c *ringCache) IndexField(ctx context.Context, obj client.Object, field string, extract client.IndexerFunc) error {
	index := extract
	if c.hides(c.checks.sort(obj)) {
		index = func(obj client.Object) []string {
			hidden, _ := c.keys.hidden(obj).(client.Object)

			return extract(hidden)
		}
	}

	return c.Cache.IndexField(ctx, obj, field, index) //nolint:wrapcheck // it is the cache's
}

// ringInformer is an informer whose handlers and indexes see objects without the keys.
type ringInformer struct {
	cache.Informer

	keys ringKeys
}

func (i *ringInformer) AddEventHandler(
	h toolscache.ResourceEventHandler,
) (toolscache.ResourceEventHandlerRegistration, error) {
	return i.Informer.AddEventHandler(i.hiding(h)) //nolint:wrapcheck // it is the informer's
}

func (i *ringInformer) AddEventHandlerWithResyncPeriod(
	h toolscache.ResourceEventHandler, period time.Duration,
) (toolscache.ResourceEventHandlerRegistration, error) {
	return i.Informer.AddEventHandlerWithResyncPeriod(i.hiding(h), period) //nolint:wrapcheck // it is the informer's
}

func (i *ringInformer) AddEventHandlerWithOptions(
	h toolscache.ResourceEventHandler, o toolscache.HandlerOptions,
) (toolscache.ResourceEventHandlerRegistration, error) {
	return i.Informer.AddEventHandlerWithOptions(i.hiding(h), o) //nolint:wrapcheck // it is the informer's
}

func (i *ringInformer) AddIndexers(indexers toolscache.Indexers) error {
	hidden := toolscache.Indexers{}
	for name, index := range indexers {
		hidden[name] = func(obj any) ([]string, error) { return index(i.keys.hidden(obj)) }
	}

	return i.Informer.AddIndexers(hidden) //nolint:wrapcheck // it is the informer's
}

func (i *ringInformer) hiding(h toolscache.ResourceEventHandler) toolscache.ResourceEventHandler {
	return toolscache.ResourceEventHandlerDetailedFuncs{
		AddFunc:    func(obj any, initial bool) { h.OnAdd(i.keys.hidden(obj), initial) },
		UpdateFunc: func(old, obj any) { h.OnUpdate(i.keys.hidden(old), i.keys.hidden(obj)) },
		DeleteFunc: func(obj any) { h.OnDelete(i.keys.hidden(obj)) },
	}
}

// body is the content of a patch, which can be changed so that the object keeps what it carries. A patch that replaces
// all labels or annotations costs a request: the object is read, and either the patch names all that it removes, or it
// becomes conditional on the version that was read. Patches that no library computes, such as the move of all labels,
// are sent as they are, and so are those in CBOR.
type body struct {
	*clients

	patchType  types.PatchType
	fields     map[string]any   // of a patch that has the form of the object
	operations []map[string]any // of a JSON patch
	version    string           // the precondition that a patch of all labels or annotations needs
	read       func() (metav1.Object, error)
}

// body returns the content of a patch. The function reads the object from the API server.
func (c *clients) body(
	patchType types.PatchType, data []byte, read func() (metav1.Object, error),
) (b *body, err error) {
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

func (b *body) content() any {
	if b.patchType == types.JSONPatchType {
		return &b.operations
	}

	return &b.fields
}

func (b *body) encoded() ([]byte, error) {
	data, err := json.Marshal(b.content())
	if err != nil {
		return nil, fmt.Errorf("encode the patch: %w", err)
	}

	return data, nil
}

func (b *body) keep() error {
	if b.patchType == types.JSONPatchType {
		return b.keepOperations()
	}

	return b.keepFields()
}

const versionPath = "/metadata/resourceVersion"

// requires makes the version a precondition, unless the patch has one. An operation sets the version instead of testing
// it: for the API server, a failed test is an invalid request, but a different version is a conflict.
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

func (b *body) keepFields() (err error) {
	metadata, _ := b.fields["metadata"].(map[string]any)

	if b.patchType == types.StrategicMergePatchType &&
		(b.fields[directive] == "replace" || metadata[directive] == "replace") {
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
