// Package assignment says where an object is: what its labels tell, and what they amount to in a ring.
//
// It reads metadata that it is given and decides nothing about the object; that is done by package plan, whose terms it uses.
package assignment

import (
	"encoding/json"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/plan"
)

// State sums up where an object is. Its zero value is no state.
type State string

const (
	// Assigned says that the object is at the shard that it belongs to.
	Assigned State = "assigned"
	// Misplaced says that the object is at a live shard, and the ring gives it to another.
	Misplaced State = "misplaced"
	// Draining says that the object's shard has been asked to give it up and has not done so yet.
	Draining State = "draining"
	// DeadShard says that the object carries the label of a shard that is not available.
	DeadShard State = "dead shard"
	// Unassigned says that the object should have a shard and has none.
	Unassigned State = "unassigned"
	// Foreign says that the object carries labels of the ring although the ring does not cover it.
	Foreign State = "foreign"
)

// StateOf returns the state of an object, or ok false if the object is no business of the ring: neither covered nor labelled.
// It does not look at the owner of a controlled object, only at the shard that the ring gives the object to.
func StateOf(r plan.Ring, o plan.Object) (s State, ok bool) {
	switch {
	case !o.Labels():
		return "", false
	case !o.Belongs:
		return Foreign, true
	case o.Shard == "":
		return Unassigned, true
	case !r.Available(o.Shard):
		return DeadShard, true
	case o.Draining:
		return Draining, true
	case o.Shard != o.Desired:
		return Misplaced, true
	default:
		return Assigned, true
	}
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
	label := v1alpha1.DrainLabel(ring)
	if _, draining := obj.GetLabels()[label]; !draining {
		return time.Time{}, false
	}

	for _, entry := range obj.GetManagedFields() {
		if entry.Time.IsZero() || !manages(entry.FieldsV1, label) {
			continue
		}

		if !ok || entry.Time.Time.Before(at) {
			at, ok = entry.Time.Time, true
		}
	}

	return at, ok
}

// manages says whether the set of fields has the label.
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

// Writer returns who manages a label of the object, and when they last wrote to it; the latest if several do. ok is false if the
// object does not carry the label, or if its managed fields do not tell.
func Writer(label string, obj metav1.Object) (manager string, at time.Time, ok bool) {
	if _, labelled := obj.GetLabels()[label]; !labelled {
		return "", time.Time{}, false
	}

	for _, entry := range obj.GetManagedFields() {
		if entry.Time.IsZero() || !manages(entry.FieldsV1, label) {
			continue
		}

		if !ok || entry.Time.After(at) {
			manager, at, ok = entry.Manager, entry.Time.Time, true
		}
	}

	return manager, at, ok
}
