package shard

import (
	"context"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// acknowledge releases an object. One patch removes the drain label of exactly the version that was drained. It also removes the
// shard label, or sets it to the shard that the drain names. guard.leave has chosen the caller. A conflict means that the object
// has changed since, perhaps because the drain was withdrawn; the returned error satisfies apierrors.IsConflict.
func (s *Shard) acknowledge(ctx context.Context, key objectKey, asked drain) error {
	var result outcome
	// Settle even if the patch panics: an object must not be stuck forever.
	defer func() { s.guard.settle(key, result) }()

	var next any // nil: the API server asks an assigner
	if asked.next != "" && asked.next != s.Name() {
		next = asked.next
	}

	k := s.kind(key.GroupKind, key.Namespace)

	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"resourceVersion": asked.version,
		"labels":          map[string]any{s.shardKey: next, s.drainKey: nil},
	}})
	if err != nil {
		return fmt.Errorf("acknowledge the drain of %s %s: %w", k.gvk.Kind, key.NamespacedName, err)
	}

	released, err := k.patch(ctx, key.NamespacedName, patch)
	if err != nil {
		if apierrors.IsNotFound(err) {
			result.deleted = true

			return nil
		}

		return fmt.Errorf("acknowledge the drain of %s %s: %w", k.gvk.Kind, key.NamespacedName, err)
	}

	result.version = released
	s.released.Add(1)
	log.FromContext(ctx).Info("Acknowledged drain", "drainedKind", k.gvk.Kind, "drainedObject", key.NamespacedName)

	return nil
}
