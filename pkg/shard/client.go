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
//   - Outside the shard's term, every write fails with [ErrNotHeld] or [ErrLost]. The term begins at the end of the hold-off
//     and ends at the renew deadline, even in a process that was frozen. Runnables that need no Lease use a client of their
//     own.
//   - A patch of a sharded object, of its status, or of another subresource gets the object's resourceVersion as a precondition
//     unless it has one. If the object has changed since, for example because it has moved to another shard, the API server
//     answers Conflict and does nothing. The version is that of the passed object. If the passed object has no version, and
//     the kind has a [Shard.Reconciler] or [Shard.Handler], it is the version in the cache. Apply configurations count as
//     patches.
//
// The client does not change the following: updates and deletes, whose preconditions are up to the caller; patches of
// subresources that have a body of their own (such as Scale); patches in CBOR; and patches of objects that neither carry this
// shard's label nor have a version in the cache. Such objects are not sharded, belong to another shard, or are created by the
// patch.
//
// The client has a cost. A patch that would have merged with the writes of others is now a conflict, and the reconcile is
// repeated with a fresh object. A second patch from the same old copy conflicts with the first one, so refresh the copy with the
// answer. A patch is decoded and encoded one more time, and an apply configuration two more times.
func (s *Shard) Client(c client.Client) client.Client {
	return &fencedClient{Client: c, fence: fence{shard: s, client: c}}
}

// fence adds the conditions to writes that protect objects of other shards.
type fence struct {
	shard  *Shard
	client client.Client
}

// do calls the function if the shard may write.
func (f fence) do(verb string, call func() error) error {
	if err := f.shard.term.held(); err != nil {
		return fmt.Errorf("refused to %s: %w", verb, err)
	}

	return call()
}

// patch calls the function with the patch. If a precondition is required, it adds it to the patch.
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

// version returns the version that a patch of the object is based on, or "" if the object is not known to belong to this shard.
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

// cached returns the version that the cache contains of an object of this shard, or "" if there is none.
func (f fence) cached(ctx context.Context, obj runtime.Object, name types.NamespacedName) (string, error) {
	gvk, err := f.client.GroupVersionKindFor(obj)
	if err != nil {
		return "", fmt.Errorf("determine the kind of %T: %w", obj, err)
	}

	k := f.shard.kind(gvk.GroupKind(), name.Namespace)
	if k == nil {
		return "", nil
	}

	found, err := k.read(ctx, name)
	if err != nil || found == nil || !f.shard.owns(found) {
		return "", err
	}

	return found.GetResourceVersion(), nil
}

// apply calls the function with the apply configuration. If a precondition is required, it adds it. The caller's configuration
// receives the answer, but does not keep the precondition if the call fails.
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

// withVersion adds the version as a precondition to an encoded patch, unless the patch sets or tests the version itself.
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

// withVersionOperation sets the version instead of testing it: for the API server, a failed test is an invalid request, but a
// different version is a conflict.
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

func quoted(s string) json.RawMessage { return json.RawMessage(`"` + s + `"`) } // versions are opaque, but contain no quotes

func encoded(v any) ([]byte, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode the patch: %w", err)
	}

	return data, nil
}
