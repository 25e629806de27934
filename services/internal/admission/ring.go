// Package admission decides, from what a ring is and what a write makes of an object, which shard label the object gets
// in that same write.
//
// It takes no lock and knows no time: a request is answered from its own content and one immutable [Ring]. Only of an object whose controller
// follows another one in turn it is asked who that is.
//
// # Invariants
//
//  1. Every request is allowed. What cannot be assigned now is admitted as it is, for the rebalancer to assign.
//  2. A shard label is only ever written with the name of a shard that is available, or with the one that it had.
//  3. An object that carries a shard label after the write is not changed.
//  4. No shard loses an object without a drain label on it: a write that drops the shard label from an object that was not
//     asked to move gets it back, whatever is known of the shard.
//  5. Equal rings and requests give equal answers.
//  6. No object gets a label of which the ring's status does not say that objects of its resource may carry one.
package admission

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/services/internal/resources"
)

// Facts are what is known of a ring at one moment.
type Facts struct {
	// Name is the ring's.
	Name string
	// Resources are the ring's resources as the API server serves them.
	Resources *resources.Set
	// Recorded are the resources that status.assignment.resources of the ring names. Objects of others get no label: the rebalancer
	// would not know that there is one to remove, should the resource leave the ring before it has looked.
	Recorded sets.Set[schema.GroupResource]
	// View is the ring's shards.
	View *membership.View
	// AssignedFingerprint is status.assignment.fingerprint of the ring: the set of shards for which every object was last
	// found in its place. Empty if that is not known.
	AssignedFingerprint string
	// Deleting says that the ring is being deleted.
	Deleting bool
}

// Ring is what [Decide] knows of a ring. It is immutable and safe for concurrent use; make it with [NewRing].
type Ring struct {
	facts      Facts
	shardLabel string
	drainLabel string
	// settled says that no object is on its way between shards, as far as is known.
	settled bool
}

// NewRing prepares facts for decisions, including the hash ring, so that no request has to wait for it. The facts'
// resources and view must not be nil.
func NewRing(f Facts) *Ring {
	return &Ring{
		facts:      f,
		shardLabel: v1alpha1.ShardLabel(f.Name),
		drainLabel: v1alpha1.DrainLabel(f.Name),
		settled:    f.View.Fingerprint() == f.AssignedFingerprint,
	}
}

// Facts returns what the ring was made from.
func (r *Ring) Facts() Facts { return r.facts }

// unknownRing warns about a ring that does not exist. A name of a ring has at most 63 characters; what is longer was not
// written by the registration.
func unknownRing(name string) string {
	return fmt.Sprintf("ClusterRing %.63q does not exist: the object was not assigned to a shard", name)
}

func (r *Ring) noShard() string {
	return fmt.Sprintf("ClusterRing %q has no available shard: the object waits unassigned until there is one", r.facts.Name)
}

func (r *Ring) ownerUnread(err error) string {
	return fmt.Sprintf("ClusterRing %q: the object waits unassigned until the rebalancer has found its owner: %v (may the assigner read it? "+
		"That takes a ClusterRole with the label %s: \"true\")", r.facts.Name, err, v1alpha1.LabelAggregateToAssigner)
}

func (r *Ring) restored(shard string) string {
	return fmt.Sprintf("ClusterRing %q: label %s was put back, because shard %q may be working on the object; it moves by itself when it has to",
		r.facts.Name, r.shardLabel, shard)
}
