package admission

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/clusterring/clusterring/services/internal/key"
	"github.com/clusterring/clusterring/services/internal/resources"
)

// Operation is what a request does to an object, spelled as in an AdmissionReview.
type Operation string

// Operations that a decision is made for.
const (
	Create Operation = "CREATE"
	Update Operation = "UPDATE"
)

// Object is the metadata of an object that a decision depends on. Its deletionTimestamp is not among it: an object that is
// being deleted needs a shard like any other, for somebody has to handle its finalizers.
type Object struct {
	// Name is empty while the API server has yet to generate it.
	Name string
	// Namespace is empty for cluster-scoped objects.
	Namespace string
	// Labels may be nil.
	Labels map[string]string
	// OwnerReferences may be nil.
	OwnerReferences []metav1.OwnerReference
}

// Request is one write.
type Request struct {
	// Ring is the ring's name, from the path that was called.
	Ring string
	// Operation is what the write does.
	Operation Operation
	// Resource is what is written.
	Resource schema.GroupResource
	// SubResource is empty for a write of the object itself.
	SubResource string
	// Object is the object as the write leaves it; nil if it could not be read.
	Object *Object
	// Old is the object before an update; nil otherwise, or if it could not be read.
	Old *Object
}

// Answer says what to do with the written object's labels. The write is allowed in any case.
type Answer struct {
	// Outcome says what was decided and why.
	Outcome Outcome
	// Shard is the value that the shard label gets; empty if the label is left as it is.
	Shard string
	// RemoveDrain says that the drain label is removed.
	RemoveDrain bool
	// Warning is shown to whoever wrote the object; empty if nobody could do anything about it.
	Warning string
}

// Decide answers a request for the ring; ring is nil if there is none of that name. Neither is changed. The ancestors are asked about an object
// whose controller is of one of the ring's controlled resources, and may need the context for it.
func Decide(ctx context.Context, ring *Ring, req *Request, ancestors resources.Ancestors) Answer {
	if ring == nil {
		return Answer{Outcome: UnknownRing, Warning: unknownRing(req.Ring)}
	}

	if ring.facts.Deleting {
		return Answer{Outcome: RingDeleting}
	}

	if req.Operation != Create && req.Operation != Update || req.SubResource != "" {
		return Answer{Outcome: NotAsked}
	}

	resource, role, ok := ring.facts.Resources.Find(req.Resource)
	if !ok {
		return Answer{Outcome: UnknownResource}
	}

	if req.Object == nil {
		return Answer{Outcome: Undecodable}
	}

	if _, labelled := req.Object.Labels[ring.shardLabel]; labelled {
		return Answer{Outcome: Labelled}
	}

	meta := metav1.ObjectMeta{Name: req.Object.Name, OwnerReferences: req.Object.OwnerReferences}
	if resource.Namespaced {
		meta.Namespace = req.Object.Namespace
	}

	kin, ok, err := ring.facts.Resources.KinOf(ctx, resources.Subject{Resource: resource, Role: role, Object: &meta}, ancestors)

	switch {
	case err != nil:
		return Answer{Outcome: OwnerUnread, Warning: ring.ownerUnread(err)}
	case !ok:
		return Answer{Outcome: ForeignOwner}
	}

	return ring.assign(req, resource, role, kin.Key)
}

// assign answers for an object of the ring that has no shard label after the write.
func (r *Ring) assign(req *Request, resource resources.Resource, role resources.Role, k key.Key) Answer {
	if shard, dropped := r.dropped(req); dropped {
		return Answer{Outcome: Restored, Shard: shard, Warning: r.restored(shard)}
	}

	if k.Name == "" {
		return Answer{Outcome: NameUnknown}
	}

	if !r.facts.Recorded.Has(resource.GroupResource()) {
		return Answer{Outcome: Unrecorded}
	}

	shard, ok := r.facts.View.Owner(k)
	if !ok {
		return Answer{Outcome: NoShard, Warning: r.noShard()}
	}

	// What follows the object is not there yet. A new object has nothing that follows it.
	if role == resources.Main && resource.Controls && req.Operation == Update {
		return Answer{Outcome: Handover}
	}

	// While objects are on their way, the owner may still be at another shard than the ring's, and two shards must not
	// work on an owner and its child. Only the rebalancer can read where the owner is.
	if role == resources.Controlled && !r.settled {
		return Answer{Outcome: Moving}
	}

	_, drain := req.Object.Labels[r.drainLabel]

	return Answer{Outcome: Assigned, Shard: shard, RemoveDrain: drain}
}

// dropped returns the shard that an update takes an object from although nobody asked that shard to give it up. It does so
// even if the shard looks dead from here: what this replica knows of Leases may be old, and the shard may have begun to
// work since. The rebalancer asks the API server before it gives the object to another one.
func (r *Ring) dropped(req *Request) (shard string, ok bool) {
	if req.Operation != Update || req.Old == nil {
		return "", false
	}

	if _, drain := req.Old.Labels[r.drainLabel]; drain {
		return "", false
	}

	shard = req.Old.Labels[r.shardLabel]

	return shard, shard != ""
}
