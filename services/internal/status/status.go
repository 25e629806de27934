// Package status writes one service's part of the status of a ring.
//
// Several services write into one status, each with its own field manager and server-side apply. Therefore, no service overwrites
// the part of another, and the last report of a stopped service remains.
package status

import (
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
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

// maxMessage is the longest message of a condition that the API accepts, in bytes.
const maxMessage = 32 * 1024

// attempts is how often a write is tried if others write to the ring at the same time.
const attempts = 5

// Part is what one service reports about a ring. A nil field does not belong to this service. A service must always pass its
// complete part: what it omits is removed.
type Part struct {
	// ObservedGeneration is the last generation of the spec that the service saw.
	ObservedGeneration *int64
	// Shards is the number of shards with a Lease.
	Shards *int32
	// AvailableShards is the number of shards that can get objects.
	AvailableShards *int32
	// Holders are the shards that have another name than their Pod; empty, and not nil, if there are none.
	Holders []v1alpha1.ShardHolder
	// ShardLabel is the key of the ring's shard label; empty if it does not belong to this service.
	ShardLabel string
	// Assignment is what is known about the ring's objects.
	Assignment *v1alpha1.AssignmentStatus
	// Conditions are the conditions of this service. Type, status, and reason are required; times are filled in.
	Conditions []metav1.Condition
}

// Writer writes the part of one service. It may be used by several goroutines for different rings.
type Writer struct {
	// Client sends the request.
	Client client.Client
	// Owner is the field manager: the name of the service.
	Owner string
	// Clock provides the time of a condition's transition.
	Clock clock.PassiveClock
}

// Write applies the part to the status of the ring. It sends nothing if the given ring already contains the part. The time of a
// transition is kept unless a condition's status changes. It returns the API server's error, which is NotFound if the ring is
// gone, and Conflict if there is another ring of this name now; ring is not changed.
func (w Writer) Write(ctx context.Context, ring *v1alpha1.ClusterRing, p Part) error {
	conditions := w.conditions(ring, p.Conditions)
	if shows(ring, p, conditions) {
		return nil
	}

	body, err := encode(p, conditions)
	if err != nil {
		return fmt.Errorf("encode the status of ring %s: %w", ring.Name, err)
	}

	return w.apply(ctx, ring, body)
}

// Shown reports whether the given ring already contains the part, so that [Writer.Write] would send nothing.
func (w Writer) Shown(ring *v1alpha1.ClusterRing, p Part) bool {
	return shows(ring, p, w.conditions(ring, p.Conditions))
}

// encode returns the part as an apply configuration, without the fields that are not set.
func encode(p Part, conditions []metav1.Condition) (map[string]any, error) {
	body := map[string]any{}
	if p.ObservedGeneration != nil {
		body["observedGeneration"] = *p.ObservedGeneration
	}

	if p.Shards != nil {
		body["shards"] = int64(*p.Shards)
	}

	if p.AvailableShards != nil {
		body["availableShards"] = int64(*p.AvailableShards)
	}

	if p.ShardLabel != "" {
		body["shardLabel"] = p.ShardLabel
	}

	if len(p.Holders) > 0 {
		holders := make([]any, 0, len(p.Holders))
		for _, h := range p.Holders {
			holders = append(holders, map[string]any{"shard": h.Shard, "pod": h.Pod})
		}

		body["holders"] = holders
	}

	if p.Assignment != nil {
		m, err := runtime.DefaultUnstructuredConverter.ToUnstructured(p.Assignment)
		if err != nil {
			return nil, fmt.Errorf("assignment: %w", err)
		}

		body["assignment"] = m
	}

	list := make([]any, 0, len(conditions))

	for i := range conditions {
		m, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&conditions[i])
		if err != nil {
			return nil, fmt.Errorf("condition %s: %w", conditions[i].Type, err)
		}

		list = append(list, m)
	}

	if len(list) > 0 {
		body["conditions"] = list
	}

	return body, nil
}

// apply writes the part, on the condition that the ring is the given one. The API server ignores the UID of what is applied to a status. Therefore,
// the condition is the resource version, and if that has changed, a patch of nothing returns the ring as it is now.
func (w Writer) apply(ctx context.Context, ring *v1alpha1.ClusterRing, body map[string]any) error {
	u := &unstructured.Unstructured{Object: map[string]any{"status": body}}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("ClusterRing"))
	u.SetName(ring.Name)
	u.SetResourceVersion(ring.ResourceVersion)

	for attempt := 1; ; attempt++ {
		err := w.Client.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(u.DeepCopy()), client.FieldOwner(w.Owner), client.ForceOwnership)
		if err == nil {
			return nil
		}

		now := &v1alpha1.ClusterRing{ObjectMeta: metav1.ObjectMeta{Name: ring.Name}}
		if !apierrors.IsConflict(err) || attempt == attempts || w.Client.Status().Patch(ctx, now, client.RawPatch(types.MergePatchType, []byte("{}"))) != nil ||
			now.UID != ring.UID {
			return fmt.Errorf("write the status of ring %s: %w", ring.Name, err)
		}

		u.SetResourceVersion(now.ResourceVersion)
	}
}

// conditions adds times and the generation to the given conditions.
func (w Writer) conditions(ring *v1alpha1.ClusterRing, given []metav1.Condition) []metav1.Condition {
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

func shows(ring *v1alpha1.ClusterRing, p Part, conditions []metav1.Condition) bool {
	st := ring.Status
	if p.ObservedGeneration != nil && *p.ObservedGeneration != st.ObservedGeneration ||
		p.Shards != nil && *p.Shards != st.Shards ||
		p.AvailableShards != nil && *p.AvailableShards != st.AvailableShards ||
		p.ShardLabel != "" && p.ShardLabel != st.ShardLabel ||
		p.Holders != nil && !equality.Semantic.DeepEqual(p.Holders, st.Holders) ||
		p.Assignment != nil && !equality.Semantic.DeepEqual(p.Assignment, st.Assignment) {
		return false
	}

	for i := range conditions {
		old := meta.FindStatusCondition(st.Conditions, conditions[i].Type)
		if old == nil || !equality.Semantic.DeepEqual(*old, conditions[i]) {
			return false
		}
	}

	return true
}
