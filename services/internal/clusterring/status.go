package clusterring

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

// maxMessage is the longest message of a condition that the API accepts, in bytes.
const maxMessage = 32 * 1024

// StatusPart is what one service reports about a ring. A nil field does not belong to this service. A service must
// always pass its complete part: what it omits is removed.
type StatusPart struct {
	// ObservedGeneration is the last generation of the spec that the service saw.
	ObservedGeneration *int64 `json:"observedGeneration,omitempty"`
	// Shards is the number of shards with a Lease.
	Shards *int32 `json:"shards,omitempty"`
	// AvailableShards is the number of shards that can get objects.
	AvailableShards *int32 `json:"availableShards,omitempty"`
	// Holders are the shards that have another name than their Pod; empty, and not nil, if there are none.
	Holders []v1alpha1.ShardHolder `json:"holders,omitempty"`
	// ShardLabel is the key of the ring's shard label; empty if it does not belong to this service.
	ShardLabel string `json:"shardLabel,omitempty"`
	// Assignment is what is known about the ring's objects.
	Assignment *v1alpha1.AssignmentStatus `json:"assignment,omitempty"`
	// Conditions are the conditions of this service. Type, status, and reason are required; times are filled in.
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// StatusWriter writes the part of one service. It may be used by several goroutines for different rings.
type StatusWriter struct {
	// Client sends the request.
	Client client.Client
	// Owner is the field manager: the name of the service.
	Owner string
	// Clock provides the time of a condition's transition.
	Clock clock.PassiveClock
}

// Write applies the part to the status of the ring. It sends nothing if the given ring already contains the part, and
// does nothing if the ring is gone. The time of a transition is kept unless a condition's status changes. It returns
// the API server's error, which is Conflict if there is another ring of this name now; ring is not changed.
func (w StatusWriter) Write(ctx context.Context, ring *v1alpha1.ClusterRing, p StatusPart) error {
	if w.Shown(ring, p) {
		return nil
	}

	p.Conditions = w.conditions(ring, p.Conditions)

	body, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&p)
	if err != nil {
		return fmt.Errorf("encode the status of ring %s: %w", ring.Name, err)
	}

	return w.apply(ctx, ring, body)
}

// apply writes the part, on the condition that the ring is the given one. The API server ignores the UID of what is
// applied to a status. Therefore, the condition is the resource version, and if that has changed, a patch of nothing
// returns the ring as it is now.
func (w StatusWriter) apply(ctx context.Context, ring *v1alpha1.ClusterRing, body map[string]any) error {
	u := &unstructured.Unstructured{Object: map[string]any{"status": body}}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("ClusterRing"))
	u.SetName(ring.Name)
	u.SetResourceVersion(ring.ResourceVersion)

	var recreated error

	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		part := client.ApplyConfigurationFromUnstructured(u.DeepCopy())

		err := w.Client.Status().Apply(ctx, part, client.FieldOwner(w.Owner), client.ForceOwnership)
		if apierrors.IsConflict(err) {
			now := &v1alpha1.ClusterRing{ObjectMeta: metav1.ObjectMeta{Name: ring.Name}}
			nothing := client.RawPatch(types.MergePatchType, []byte("{}"))

			if w.Client.Status().Patch(ctx, now, nothing) != nil || now.UID != ring.UID {
				recreated = err
				return nil //nolint:nilerr // so that it does not try again
			}

			u.SetResourceVersion(now.ResourceVersion)
		}

		return err //nolint:wrapcheck // with what follows
	})
	if err := cmp.Or(client.IgnoreNotFound(err), recreated); err != nil {
		return fmt.Errorf("write the status of ring %s: %w", ring.Name, err)
	}

	return nil
}

// Shown reports whether the given ring already contains the part, so that [StatusWriter.Write] would send nothing.
func (w StatusWriter) Shown(ring *v1alpha1.ClusterRing, p StatusPart) bool {
	st := ring.Status
	if p.ObservedGeneration != nil && *p.ObservedGeneration != st.ObservedGeneration ||
		p.Shards != nil && *p.Shards != st.Shards ||
		p.AvailableShards != nil && *p.AvailableShards != st.AvailableShards ||
		p.ShardLabel != "" && p.ShardLabel != st.ShardLabel ||
		p.Holders != nil && !equality.Semantic.DeepEqual(p.Holders, st.Holders) ||
		p.Assignment != nil && !equality.Semantic.DeepEqual(p.Assignment, st.Assignment) {
		return false
	}

	for _, c := range w.conditions(ring, p.Conditions) {
		old := meta.FindStatusCondition(st.Conditions, c.Type)
		if old == nil || !equality.Semantic.DeepEqual(*old, c) {
			return false
		}
	}

	return true
}

// conditions adds times and the generation to the given conditions.
func (w StatusWriter) conditions(ring *v1alpha1.ClusterRing, given []metav1.Condition) []metav1.Condition {
	out := make([]metav1.Condition, 0, len(given))

	for _, c := range given {
		c.ObservedGeneration = ring.Generation
		c.LastTransitionTime = metav1.NewTime(w.Clock.Now())

		if old := meta.FindStatusCondition(ring.Status.Conditions, c.Type); old != nil && old.Status == c.Status {
			c.LastTransitionTime = old.LastTransitionTime
		}

		if len(c.Message) > maxMessage {
			c.Message = strings.ToValidUTF8(c.Message[:maxMessage-3], "") + "..."
		}

		out = append(out, c)
	}

	return out
}
