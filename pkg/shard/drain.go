package shard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// acknowledgeTimeout limits one attempt to acknowledge.
const acknowledgeTimeout = 10 * time.Second

// acknowledge releases an object, and reports whether nothing remains to be done. guard.leave has chosen the caller. First, what the process holds
// for the object ends ([Releaser]). Then one patch removes the drain label of exactly the version that was drained. It also removes the
// shard label, or sets it to the shard that the drain names. A conflict means that the object has changed since, perhaps because the
// drain was withdrawn; the returned error satisfies apierrors.IsConflict.
//
// The context is not that of a reconcile, whose end must not break this off. The end of the term does.
func (s *Shard) acknowledge(ctx context.Context, key objectKey, asked drain) (done bool, err error) {
	result := outcome{unknown: asked.unknown}
	// Settle even if the patch panics: an object must not be stuck forever.
	defer func() { s.guard.settle(key, result) }()

	if err := s.release(ctx, key); err != nil {
		return false, err
	}

	if asked == (drain{}) {
		result.left = true
		s.forget(key)

		return true, nil
	}

	ctx, end, err := s.term.begin(ctx)
	if err != nil {
		return false, err
	}
	defer end()

	k := s.kind(key.GroupKind, key.Namespace)
	if !asked.unknown {
		result, err = s.sendRelease(ctx, k, key, asked)
	}

	if result.unknown {
		result, err = s.afterwards(ctx, k, key, err)
	}

	if err != nil {
		return false, fmt.Errorf("acknowledge the drain of %s %s: %w", k.gvk.Kind, key.NamespacedName, err)
	}

	if result.version == "" {
		return false, nil
	}

	s.forget(key)
	s.released.Add(1)
	log.FromContext(ctx).Info("Acknowledged drain", "drainedKind", k.gvk.Kind, "drainedObject", key.NamespacedName)

	return true, nil
}

// sendRelease sends the patch. The outcome is unknown unless the API server has certainly applied or refused it.
func (s *Shard) sendRelease(ctx context.Context, k *kind, key objectKey, asked drain) (outcome, error) {
	var next any // nil: the API server asks an assigner
	if asked.next != "" && asked.next != s.Name() {
		next = asked.next
	}

	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"resourceVersion": asked.version,
		"labels":          map[string]any{s.shardKey: next, s.drainKey: nil},
	}})
	if err != nil {
		return outcome{}, err //nolint:wrapcheck // the caller adds the object
	}

	ctx, cancel := context.WithTimeout(ctx, acknowledgeTimeout)
	defer cancel()

	version, err := k.patch(ctx, key.NamespacedName, patch)
	if apierrors.IsNotFound(err) {
		return outcome{deleted: true}, nil
	}

	return outcome{version: version, unknown: err != nil && !refused(err)}, err
}

// refused reports whether the API server has certainly not applied a request. A conflict may be the answer to the second attempt of a
// client that got none to the first.
func refused(err error) bool {
	status := apierrors.APIStatus(nil)
	if !errors.As(err, &status) {
		return false
	}

	code := int(status.Status().Code)

	return code >= http.StatusBadRequest && code < http.StatusInternalServerError && code != http.StatusConflict && code != http.StatusTooManyRequests
}

// afterwards reads from the API server what has become of an object, after the given error, and returns the error that remains.
func (s *Shard) afterwards(ctx context.Context, k *kind, key objectKey, failure error) (outcome, error) {
	live, err := k.live(ctx, key.NamespacedName)

	switch {
	case err != nil:
		// After a conflict, the drained version is certainly over. The next version or the next attempt tells the rest.
		return outcome{unknown: !apierrors.IsConflict(failure)}, errors.Join(failure, err)
	case live == nil:
		return outcome{deleted: true}, nil
	case s.owns(live):
		return outcome{}, failure
	default:
		return outcome{version: live.GetResourceVersion()}, nil
	}
}
