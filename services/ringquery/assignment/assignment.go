// Package assignment says where an object is: what its labels tell, and what they amount to in a ring.
//
// It reads metadata that it is given and decides nothing about the object; that is done by package plan, whose terms it uses.
package assignment

import (
	"encoding/json"
	"iter"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/services/internal/plan"
	"github.com/clusterring/clusterring/services/internal/resources"
)

// State sums up where an object is.
type State = pb.AssignmentState

// States of an object.
const (
	// None says that the object is no business of the ring: neither covered nor labelled.
	None = pb.AssignmentState_ASSIGNMENT_STATE_UNSPECIFIED
	// Assigned says that the object is at the shard that it belongs to.
	Assigned = pb.AssignmentState_ASSIGNMENT_STATE_ASSIGNED
	// Misplaced says that the object is at a live shard, and the ring gives it to another.
	Misplaced = pb.AssignmentState_ASSIGNMENT_STATE_MISPLACED
	// Draining says that the object's shard has been asked to give it up and has not done so yet.
	Draining = pb.AssignmentState_ASSIGNMENT_STATE_DRAINING
	// DeadShard says that the object carries the label of a shard that is not available.
	DeadShard = pb.AssignmentState_ASSIGNMENT_STATE_DEAD_SHARD
	// Unassigned says that the object should have a shard and has none.
	Unassigned = pb.AssignmentState_ASSIGNMENT_STATE_UNASSIGNED
	// Foreign says that the object carries labels of the ring although the ring does not cover it.
	Foreign = pb.AssignmentState_ASSIGNMENT_STATE_FOREIGN
)

// StateOf returns the state of an object. It does not look at the owner of a controlled object, only at the shard that the ring
// gives the object to.
func StateOf(r plan.Ring, o plan.Object) State {
	switch {
	case !o.Labels():
		return None
	case !o.Belongs:
		return Foreign
	case o.Shard == "":
		return Unassigned
	case !r.Available(o.Shard):
		return DeadShard
	case o.Draining:
		return Draining
	case o.Shard != o.Desired:
		return Misplaced
	default:
		return Assigned
	}
}

// Of returns where an object is, of which o says what decides. The owner is the main object that it follows, nil if there is none.
func Of(r *membership.View, o plan.Object, obj metav1.Object, owner *resources.Owner) *pb.Assignment {
	a := &pb.Assignment{
		Namespace: obj.GetNamespace(), Name: obj.GetName(), Shard: o.Shard, DesiredShard: o.Desired, State: StateOf(r, o),
	}

	if since, ok := DrainTime(r.RingName(), obj); ok {
		a.DrainTime = timestamppb.New(since)
	}

	if owner != nil {
		a.Owner = owner.Resource.Kind.Kind + "/" + owner.Name
	}

	return a
}

// Labels returns what the labels of an object say in the named ring: Shard, Labelled and Draining of a [plan.Object]; the rest
// is for the caller to know.
func Labels(ring string, labels map[string]string) plan.Object {
	shard, labelled := labels[v1alpha1.ShardLabel(ring)]
	_, draining := labels[v1alpha1.DrainLabel(ring)]

	return plan.Object{Shard: shard, Labelled: labelled, Draining: draining}
}

// DrainTime returns since when the object carries the drain label of the named ring, by the clock of the API server: when the
// first of those who manage the label last wrote to the object. ok is false if the object does not carry the label, or if its
// managed fields do not tell.
func DrainTime(ring string, obj metav1.Object) (at time.Time, ok bool) {
	for _, when := range writers(v1alpha1.DrainLabel(ring), obj) {
		if !ok || when.Before(at) {
			at, ok = when, true
		}
	}

	return at, ok
}

// Writer returns who manages a label of the object, and when they last wrote to it; the latest if several do. ok is false if the
// object does not carry the label, or if its managed fields do not tell.
func Writer(label string, obj metav1.Object) (manager string, at time.Time, ok bool) {
	for who, when := range writers(label, obj) {
		if !ok || when.After(at) {
			manager, at, ok = who, when, true
		}
	}

	return manager, at, ok
}

// writers goes through those who manage a label that the object carries, with when they last wrote to it.
func writers(label string, obj metav1.Object) iter.Seq2[string, time.Time] {
	return func(yield func(string, time.Time) bool) {
		if _, labelled := obj.GetLabels()[label]; !labelled {
			return
		}

		for _, entry := range obj.GetManagedFields() {
			if !entry.Time.IsZero() && manages(entry.FieldsV1, label) && !yield(entry.Manager, entry.Time.Time) {
				return
			}
		}
	}
}

// manages reports whether the set of fields has the label.
func manages(fields *metav1.FieldsV1, label string) bool {
	if fields == nil {
		return false
	}

	var set struct {
		Metadata struct {
			Labels map[string]json.RawMessage `json:"f:labels"`
		} `json:"f:metadata"`
	}
	if json.Unmarshal(fields.GetRawBytes(), &set) != nil {
		return false
	}
	_, ok := set.Metadata.Labels["f:"+label]

	return ok
}
