package admission

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/resources"
)

// Operation is what a request does to an object, spelled as in an AdmissionReview.
type Operation string

// Operations that a decision is made for.
const (
	Create Operation = "CREATE"
	Update Operation = "UPDATE"
)

// rings is the resource of rings themselves.
var rings = schema.GroupResource{Group: v1alpha1.GroupVersion.Group, Resource: "clusterrings"}

// Arrived is the warning that shows the sender of a dry run that its call has arrived.
const Arrived = "the call of the API server has arrived at the assigner"

// Request is one write.
type Request struct {
	// Ring is the name of the ring, from the path of the call.
	Ring string
	// Operation is the operation of the write.
	Operation Operation
	// Resource is the resource of the written object.
	Resource schema.GroupResource
	// SubResource is empty for a write of the object itself.
	SubResource string
	// Object is the metadata of the object after the write; nil if it could not be read. A decision depends on the
	// namespace, the labels, the owner references, and the name, which is empty if the API server has yet to generate it.
	// It does not depend on the deletionTimestamp: an object that is being deleted needs a shard like any other, because a
	// shard must handle its finalizers.
	Object *metav1.ObjectMeta
	// Old is that of the object before an update; nil otherwise, or if it could not be read.
	Old *metav1.ObjectMeta
	// Writer is the Pod that the writer's token is bound to; empty if there is none. It may be empty if the object has no
	// owner references.
	Writer types.NamespacedName
	// Author is who writes: the field manager, or else the user. No decision depends on it.
	Author string
	// DryRun is true if the write is not stored. No decision depends on it.
	DryRun bool
}

// Answer is what to do with the labels of the written object. The write is always allowed.
type Answer struct {
	// Outcome is the decision and its reason.
	Outcome Outcome
	// Shard is the new value of the shard label; empty if the label does not change.
	Shard string
	// RemoveDrain is true if the drain label is removed.
	RemoveDrain bool
	// Drain is the new value of the drain label; empty if the label is not set.
	Drain string
	// Warning is shown to the author of the write; empty if no user can do anything about it.
	Warning string
}

// Decide answers a request for the ring; ring is nil if no ring has that name. It changes neither. It asks the
// ancestors about an object whose controller is of one of the ring's controlled resources, or of a main resource whose
// labels decide; see [resources.Resource.NeedsLabels]. It passes them the context. The ancestors must return all labels
// of a main object, as they are now.
func Decide(ctx context.Context, ring *Ring, req *Request, ancestors resources.Ancestors) Answer {
	if req.Resource == rings && req.SubResource == "status" {
		return Answer{Outcome: Probed, Warning: Arrived} // also from a replica that does not know the ring yet
	}

	if ring == nil {
		// The name of a ring has at most 63 characters. The registration has not written a longer one.
		return Answer{Outcome: UnknownRing,
			Warning: fmt.Sprintf("ClusterRing %.63q does not exist: the object was not assigned to a shard", req.Ring)}
	}

	if !ring.facts.Ring.DeletionTimestamp.IsZero() {
		return Answer{Outcome: RingDeleting}
	}

	if ring.facts.Refusal != "" {
		return Answer{Outcome: RingRefused, Warning: ring.warn(": the object was not assigned to a shard: %s",
			ring.facts.Refusal)}
	}

	if !ring.asked(req) {
		return Answer{Outcome: NotAsked}
	}

	resource, role, ok := ring.facts.Resources.Find(req.Resource)
	if !ok {
		return Answer{Outcome: UnknownResource}
	}

	if req.Object == nil {
		return Answer{Outcome: Undecodable,
			Warning: ring.warn(": the object waits until the rebalancer has seen it: the assigner cannot read its " +
				"metadata, or does not read so many labels or owner references")}
	}

	if _, labelled := req.Object.Labels[ring.keys.Shard]; labelled {
		return ring.labelled(req, resource, role)
	}

	meta := metaOf(req.Object, resource)

	if a, decided := ring.withoutOwner(req, resource, role, meta); decided {
		return a
	}

	kin, ok, err := ring.facts.Resources.KinOf(ctx, resources.Subject{Resource: resource, Role: role, Object: meta},
		ancestors)

	switch {
	case errors.Is(err, resources.ErrBusy):
		return Answer{Outcome: OwnerUnread} // no user can do anything about it
	case err != nil:
		return Answer{Outcome: OwnerUnread,
			Warning: ring.warn(": the object waits unassigned until the rebalancer has found its owner: %v "+
				"(is the assigner allowed to read it? This requires a ClusterRole with the label %s: \"true\")", err,
				contract.LabelAggregateToAssigner)}
	case !ok:
		return Answer{Outcome: ForeignOwner}
	}

	return ring.assign(req, resource, role, kin)
}

// asked reports whether the registration covers the request. Updates of some subresources can change labels, such as
// the status of Pods.
func (r *Ring) asked(req *Request) bool {
	if req.SubResource == "" {
		return req.Operation == Create || req.Operation == Update
	}

	return req.Operation == Update && req.Object != nil && req.Old != nil && req.Old.Labels[r.keys.Shard] != "" &&
		!r.acknowledges(req)
}

// metaOf returns the metadata that the key of the object depends on. The request for a Namespace names a namespace.
func metaOf(o *metav1.ObjectMeta, r resources.Resource) *metav1.ObjectMeta {
	if r.Namespaced {
		return o
	}

	clusterScoped := *o
	clusterScoped.Namespace = ""

	return &clusterScoped
}

// withoutOwner answers for an object without a shard label after the write if the answer does not depend on what the
// object follows: to find out may cost a request.
func (r *Ring) withoutOwner(
	req *Request, resource resources.Resource, role resources.Role, meta metav1.Object,
) (a Answer, decided bool) {
	owner, its, ok := r.facts.Resources.ControllerOf(meta)
	if role == resources.Controlled && !ok {
		return Answer{Outcome: ForeignOwner}, true
	}

	// The label of an object that follows nobody any more must not come back.
	if a, lost := r.lost(req); lost {
		return a, role == resources.Main || its == resources.Main
	}

	if role == resources.Main && !resource.Selects(req.Object.Labels) {
		return Answer{Outcome: NotSelected}, true
	}

	if !r.recorded.Has(resource.GroupResource()) {
		return Answer{Outcome: Unrecorded}, true
	}

	if r.empty {
		return Answer{Outcome: NoShard, Warning: r.noShard("")}, req.Object.Name != ""
	}

	if role == resources.Controlled && req.Operation == Create {
		if shard, ok := r.creator(req); ok {
			return r.assigned(ByShard, req, shard), true
		}
	}

	// While owners of a resource move, any of them may still be at another shard than its key's, and two shards must not
	// work on an owner and its child. Only the rebalancer can read where the owner is.
	if role == resources.Controlled && (r.settled.Len() == 0 || its == resources.Main && !r.inPlace(owner)) {
		return Answer{Outcome: Moving}, true
	}

	return a, false
}

// creator returns the shard that creates a controlled object. The object goes there: the creator works on its owner. An
// owner that drains is still at its shard, which ends its work before it releases the owner, so the rebalancer finds
// the new object among those that go before the owner. The owner is not looked at, and a process can also create
// objects for owners of other shards: the audit moves these.
func (r *Ring) creator(req *Request) (shard string, ok bool) {
	shard, ok = r.facts.View.RunBy(req.Writer)

	return shard, ok && r.facts.View.Watches(shard, req.Object.Namespace)
}

// assigned returns the answer that gives an object without a shard label to the shard.
func (r *Ring) assigned(outcome Outcome, req *Request, shard string) Answer {
	_, drain := req.Object.Labels[r.keys.Drain]

	return Answer{Outcome: outcome, Shard: shard, RemoveDrain: drain}
}

// assign answers for an object of the ring without a shard label after the write.
func (r *Ring) assign(req *Request, resource resources.Resource, role resources.Role, kin resources.Kin) Answer {
	if a, lost := r.lost(req); lost {
		return a
	}

	if kin.Unselected || kin.Orphaned {
		return Answer{Outcome: ForeignOwner}
	}

	if kin.Key.Name == "" {
		return Answer{Outcome: NameUnknown}
	}

	in := kin.In(metaOf(req.Object, resource).Namespace)

	shard, ok := r.facts.View.OwnerIn(in, kin.Key)
	if !ok {
		return Answer{Outcome: NoShard, Warning: r.noShard(in)}
	}

	// What follows the object is not at its next shard yet. Nothing follows a new object.
	if role == resources.Main && resource.Controls && req.Operation == Update {
		return Answer{Outcome: Handover}
	}

	if role == resources.Controlled && (!r.inPlace(kin.Owner) || !r.ownerIsAt(shard, kin)) {
		return Answer{Outcome: Moving}
	}

	answer := r.assigned(Assigned, req, shard)
	if role == resources.Main && kin.Keyless {
		answer.Warning = r.keyless(resource)
	}

	return answer
}

// ownerIsAt reports whether a controlled object that goes to the shard finds its owner there. A change of a label moves
// one owner, or brings it into the ring, and the ring's status shows it late, so the labels of the owner decide if its
// key is a label, or the ring selects objects by labels.
func (r *Ring) ownerIsAt(shard string, kin resources.Kin) bool {
	if !kin.Owner.Resource.NeedsLabels() {
		return true
	}

	_, drain := kin.Labels[r.keys.Drain]

	return kin.Labels[r.keys.Shard] == shard && !drain
}

// labelled answers for an object with a shard label after the write. If the write gives the object to another shard, it
// gets its label back. If the write changes the label that is the object's key, and the new key belongs to another
// shard, the shard of the object is asked to release it.
func (r *Ring) labelled(req *Request, resource resources.Resource, role resources.Role) Answer {
	answer, lost := r.lost(req)
	if !lost {
		answer.Outcome = Labelled
	}

	key := resource.Key.Label
	if role != resources.Main || key == "" || !resource.Selects(req.Object.Labels) || req.Operation != Update ||
		req.Old == nil ||
		req.Old.Labels[key] == req.Object.Labels[key] {
		return answer
	}

	meta := metaOf(req.Object, resource)
	shard, view := cmp.Or(answer.Shard, req.Object.Labels[r.keys.Shard]), r.facts.View

	if req.Old.Labels[r.keys.Shard] != shard || !view.In(meta.Namespace).Works(shard) ||
		!r.recorded.Has(resource.GroupResource()) {
		return answer // the rebalancer finds it, or has nothing to do with it
	}

	k, found := resource.Key.Of(resource.Kind.GroupKind(), meta)
	if !found && !lost {
		answer.Warning = r.keyless(resource)
	}

	next, ok := view.Place(meta.Namespace, k, shard)
	if !ok || next == shard {
		return answer // a drain that is no longer needed is withdrawn by the rebalancer
	}

	if resource.Controls { // what follows the object goes first
		next = contract.DrainValue
	}

	if req.Object.Labels[r.keys.Drain] == next {
		return answer
	}

	answer.Drain = next
	if !lost {
		answer.Outcome = Rekeyed
	}

	return answer
}

// lost returns the answer to an update that takes an object from a shard without a drain. It does so even if the shard
// looks dead from here: what this replica knows about Leases may be old, and the shard may have started to work since.
// The rebalancer asks the API server before it assigns the object to another shard.
func (r *Ring) lost(req *Request) (a Answer, ok bool) {
	if req.Operation != Update || req.Old == nil || r.acknowledges(req) {
		return a, false
	}

	shard := req.Old.Labels[r.keys.Shard]
	if shard == "" || shard == req.Object.Labels[r.keys.Shard] {
		return a, false
	}

	return Answer{Outcome: Restored, Shard: shard,
		Warning: r.warn(": label %s was restored, because shard %q may be working on the object: leave "+
			"the label out of what you write; the rebalancer moves the object when necessary", r.keys.Shard, shard)}, true
}

// acknowledges reports whether an update has the form in which a shard releases an object: the object was asked to
// move, and loses the label, or goes to the shard that the drain label names.
func (r *Ring) acknowledges(req *Request) bool {
	next, drain := req.Old.Labels[r.keys.Drain]
	shard, labelled := req.Object.Labels[r.keys.Shard]

	return drain && (!labelled || shard == next)
}

// Outcome is the decision about an object and its reason. Its values are those of the metric's label.
type Outcome string

// Outcomes. In all cases except [Assigned], [ByShard], [Restored], and [Rekeyed], the object is admitted unchanged.
const (
	// Assigned objects got the shard that owns their key.
	Assigned Outcome = "assigned"
	// ByShard is a controlled object that got the shard that has created it.
	ByShard Outcome = "by_shard"
	// Restored objects got back the shard label that the write had dropped or changed.
	Restored Outcome = "restored"
	// Labelled objects already have a shard.
	Labelled Outcome = "labelled"
	// Rekeyed objects got the drain label, because the write changes the label that is their key.
	Rekeyed Outcome = "rekeyed"
	// ForeignOwner is a controlled object that follows no main object of the ring, or none that the ring selects, and is
	// not part of the ring.
	ForeignOwner Outcome = "foreign_owner"
	// NotSelected is a main object that the object selector of the ring does not select.
	NotSelected Outcome = "not_selected"
	// OwnerUnread is a controlled object that follows another one that could not be read, so its main object is not known.
	OwnerUnread Outcome = "owner_unread"
	// NameUnknown is a main object whose name the API server has yet to generate.
	NameUnknown Outcome = "name_unknown"
	// NoShard means that the ring has no available shard.
	NoShard Outcome = "no_shard"
	// Moving is a controlled object whose owner may be moving between shards.
	Moving Outcome = "moving"
	// Handover is a main object that was released and that other objects follow: the rebalancer moves these to the next
	// shard first.
	Handover Outcome = "handover"
	// UnknownRing means that the ring does not exist.
	UnknownRing Outcome = "unknown_ring"
	// RingDeleting means that the ring is being deleted.
	RingDeleting Outcome = "ring_deleting"
	// RingRefused means that no service acts for the ring, because an older one has the same label, or its object selector
	// is not valid.
	RingRefused Outcome = "ring_refused"
	// UnknownResource means that the resource is not part of the ring, or not yet.
	UnknownResource Outcome = "unknown_resource"
	// Unrecorded means that the rebalancer has not yet recorded in the ring's status that objects of the resource may
	// carry labels.
	Unrecorded Outcome = "unrecorded"
	// Probed is the dry run of a write by which the assigner finds out whether calls arrive. Its answer has the warning
	// [Arrived].
	Probed Outcome = "probed"
	// NotAsked is a request that the registration does not cover: another operation, or a write of a subresource that
	// takes the object from no shard.
	NotAsked Outcome = "not_asked"
	// Undecodable means that the object's metadata could not be read, or has too many labels or owner references.
	Undecodable Outcome = "undecodable"
	// Starting means that the rings have not been read yet.
	Starting Outcome = "starting"
	// Failed means that the decision failed because of a bug in the program.
	Failed Outcome = "failed"
)
