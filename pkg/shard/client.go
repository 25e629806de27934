package shard

import (
	"context"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Client returns a client that writes only as this shard. Reads go to the given client, unchanged. It is meant for the
// reconcilers of sharded objects, and is safe for concurrent use:
//
//   - Every write is refused with [ErrNotHeld] or [ErrLost] outside the shard's term, that is before the end of the hold-off
//     and from the renew deadline on, also in a process that was frozen. Runnables that need no Lease keep a client of
//     their own.
//   - A patch of a sharded object, of its status or another subresource, gets the object's resourceVersion as a precondition
//     unless it has one. If the object has changed since, by moving to another shard for example, the API server answers
//     Conflict and does nothing. The version is that of the object that is passed; if that has none, and the kind has a
//     [Shard.Reconciler] or [Shard.Handler], it is the one in the cache. Apply configurations count as patches.
//
// Left as they are: updates and deletes, whose preconditions are the caller's; patches whose subresource has a body of its
// own (such as Scale); patches in CBOR; patches of objects that neither carry this shard's label nor have a version in the
// cache, which are no sharded objects or not this shard's, or are created by that patch.
//
// The costs: a patch that would have merged with what others have written meanwhile is now a conflict, and its reconcile is
// repeated with a fresh object; a second patch from the same old copy conflicts with the first one, so that copies are to be
// refreshed by the answer. A patch is decoded and encoded once more, and an apply configuration twice.
func (s *Shard) Client(c client.Client) client.Client {
	return &fencedClient{Client: c, fence: fence{shard: s, client: c}}
}

// fence adds to writes what the shard owes the others.
type fence struct {
	shard  *Shard
	client client.Client
}

// do calls the function, unless it is not the time for writes.
func (f fence) do(verb string, call func() error) error {
	if err := f.shard.term.held(); err != nil {
		return fmt.Errorf("refused to %s: %w", verb, err)
	}

	return call()
}

// patch calls the function with the patch, which gets the precondition if there must be one.
func (f fence) patch(ctx context.Context, obj client.Object, patch client.Patch, call func(client.Patch) error) error {
	return f.do("patch", func() error {
		version, err := f.version(ctx, obj)
		if err != nil {
			return err
		}
		if version == "" {
			return call(patch)
		}

		data, err := patch.Data(obj)
		if err == nil {
			data, err = withVersion(patch.Type(), data, version)
		}
		if err != nil {
			return fmt.Errorf("add the precondition to the patch of %s: %w", client.ObjectKeyFromObject(obj), err)
		}

		return call(client.RawPatch(patch.Type(), data))
	})
}

// version returns the version that a patch of the object is meant for, "" if it is not known to be this shard's.
func (f fence) version(ctx context.Context, obj client.Object) (string, error) {
	given := obj.GetResourceVersion()
	if given != "" && f.shard.Owns(obj) {
		return given, nil
	}
	cached, err := f.cached(ctx, obj, client.ObjectKeyFromObject(obj))
	if cached != "" && given != "" {
		return given, err
	}

	return cached, err
}

// cached returns the version that the cache has of an object of this shard, "" if it has none.
func (f fence) cached(ctx context.Context, obj runtime.Object, name types.NamespacedName) (string, error) {
	gvk, err := f.client.GroupVersionKindFor(obj)
	if err != nil {
		return "", fmt.Errorf("find out the kind of %T: %w", obj, err)
	}
	k := f.shard.kind(gvk.GroupKind())
	if k == nil {
		return "", nil
	}
	found, err := k.read(ctx, name)
	if err != nil || found == nil || !f.shard.owns(found) {
		return "", err
	}

	return found.GetResourceVersion(), nil
}

// apply calls the function with the apply configuration, which gets the precondition if there must be one. The caller's
// configuration receives the answer, but does not keep the precondition if it fails.
func (f fence) apply(ctx context.Context, config runtime.ApplyConfiguration, call func(runtime.ApplyConfiguration) error) error {
	return f.do("apply", func() error { return f.applyVersion(ctx, config, call) })
}

func (f fence) applyVersion(ctx context.Context, config runtime.ApplyConfiguration, call func(runtime.ApplyConfiguration) error) error {
	data, err := json.Marshal(config)
	if err != nil {
		return fmt.Errorf("encode the apply configuration: %w", err)
	}
	u := &unstructured.Unstructured{}
	if err := json.Unmarshal(data, &u.Object); err != nil {
		return fmt.Errorf("decode the apply configuration: %w", err)
	}
	if u.GetResourceVersion() != "" {
		return call(config)
	}
	version, err := f.cached(ctx, u, client.ObjectKeyFromObject(u))
	if err != nil {
		return err
	}
	if version == "" {
		return call(config)
	}

	u.SetResourceVersion(version)
	if err := call(client.ApplyConfigurationFromUnstructured(u)); err != nil {
		return err
	}
	if data, err = json.Marshal(u.Object); err == nil {
		err = json.Unmarshal(data, config)
	}
	if err != nil {
		return fmt.Errorf("return what was applied to %s: %w", client.ObjectKeyFromObject(u), err)
	}

	return nil
}

const versionPath = "/metadata/resourceVersion"

// withVersion adds the version as a precondition to an encoded patch, unless it says something about the version itself.
func withVersion(patchType types.PatchType, data []byte, version string) ([]byte, error) {
	switch patchType {
	case types.MergePatchType, types.StrategicMergePatchType:
		return withVersionField(data, version)
	case types.ApplyYAMLPatchType:
		data, err := yaml.ToJSON(data)
		if err != nil {
			return nil, fmt.Errorf("decode the apply configuration: %w", err)
		}

		return withVersionField(data, version)
	case types.JSONPatchType:
		return withVersionOperation(data, version)
	case types.ApplyCBORPatchType:
	}

	return data, nil
}

func withVersionField(data []byte, version string) ([]byte, error) {
	var patch, metadata map[string]json.RawMessage
	if err := json.Unmarshal(data, &patch); err != nil {
		return nil, fmt.Errorf("decode the patch: %w", err)
	}
	if raw, ok := patch["metadata"]; ok {
		if err := json.Unmarshal(raw, &metadata); err != nil {
			return nil, fmt.Errorf("decode the patch's metadata: %w", err)
		}
	}
	if _, ok := metadata["resourceVersion"]; ok {
		return data, nil
	}

	if patch == nil {
		patch = map[string]json.RawMessage{}
	}
	if metadata == nil {
		metadata = map[string]json.RawMessage{}
	}
	metadata["resourceVersion"] = quoted(version)
	raw, err := json.Marshal(metadata)
	if err != nil {
		return nil, fmt.Errorf("encode the patch's metadata: %w", err)
	}
	patch["metadata"] = raw

	return encoded(patch)
}

// withVersionOperation sets the version rather than testing it, because a test that fails is an invalid request to the API
// server, while a version that differs is a conflict.
func withVersionOperation(data []byte, version string) ([]byte, error) {
	var operations []json.RawMessage
	if err := json.Unmarshal(data, &operations); err != nil {
		return nil, fmt.Errorf("decode the patch: %w", err)
	}
	for _, raw := range operations {
		var operation struct{ Path string }
		if err := json.Unmarshal(raw, &operation); err != nil {
			return nil, fmt.Errorf("decode an operation of the patch: %w", err)
		}
		if operation.Path == versionPath {
			return data, nil
		}
	}
	first, err := encoded(map[string]string{"op": "replace", "path": versionPath, "value": version})
	if err != nil {
		return nil, err
	}

	return encoded(append([]json.RawMessage{first}, operations...))
}

func quoted(s string) json.RawMessage { return json.RawMessage(`"` + s + `"`) } // versions are opaque, but have no quotes

func encoded(v any) ([]byte, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode the patch: %w", err)
	}

	return data, nil
}
