// Package explain says to a person where an object is, where it belongs, why, and who will do what next.
//
// [Answer] gathers [Facts]. [Explain] says what follows from them, as a message of the API; it asks nobody and knows no clock. Package
// plan, which the rebalancer acts by, decides what happens next, so that the two never disagree.
//
// # Invariants
//
//  1. There is always a finding: of an object that is fine, too, it is said why.
//  2. Findings begin with the most severe; of equally severe ones, what is about the object comes first, then ring by ring what
//     decides comes before what follows from it.
//  3. A finding claims no more than the facts show. Times by the clocks of other machines put words into a message and choose between
//     Info, Warning and Error; nothing else depends on them.
package explain

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/ringquery/rings"
)

// Facts are all that an explanation follows from. They are read only.
type Facts struct {
	// Now is the time of the answer.
	Now time.Time
	// Object is what is asked about.
	Object Object
	// NamespaceLabels are those of the object's namespace; nil if it has none or they could not be read.
	NamespaceLabels map[string]string
	// Rings have to do with the object, in the order of their names: they list its resource, or the object carries a label of theirs.
	Rings []Ring
	// Known are the names of all rings there are; nil: the question is about one ring, and nothing is to be said of others.
	Known []string
	// Controlling are the names of the rings that list the kind of the object's controller, and not the object's own resource.
	Controlling []string
}

// Object is the object in question.
type Object struct {
	// Resource is its resource.
	Resource resources.Resource
	// Namespace is empty for a cluster-scoped object.
	Namespace, Name string
	// Meta is its metadata; nil if the server may not read it.
	Meta *metav1.PartialObjectMetadata
}

// metadata returns what is known of the object's metadata: all that was read, or its name.
func (o *Object) metadata() *metav1.PartialObjectMetadata {
	if o.Meta != nil {
		return o.Meta
	}

	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name}}
}

// message returns the object as the API tells it.
func (o *Object) message() *pb.ExplainedObject {
	res := &pb.ExplainedObject{
		Group:     o.Resource.GVR.Group,
		Resource:  o.Resource.GVR.Resource,
		Kind:      o.Resource.Kind.Kind,
		Namespace: o.Namespace,
		Name:      o.Name,
		Found:     Forbidden,
	}

	if o.Meta == nil {
		return res
	}

	res.Found = Read
	res.Uid = string(o.Meta.UID)
	res.CreateTime = timestamppb.New(o.Meta.CreationTimestamp.Time)
	res.Deleting = !o.Meta.DeletionTimestamp.IsZero()

	if ref := metav1.GetControllerOfNoCopy(o.Meta); ref != nil {
		res.Controller = ref.Kind + "/" + ref.Name
	}

	return res
}

// Ring is what is known of one ring, and of the object in it.
type Ring struct {
	// Ring is the ring; its Resources are what it lists and, if Leaving, what it listed before.
	rings.Ring

	// Shards are all Leases of the ring, in the order of their names, then namespaces.
	Shards []rings.Shard
	// Role of the object's resource; empty if neither the ring's spec nor its status names it.
	Role resources.Role
	// Leaving says that only the status names it: the ring is about to give up the objects of that resource.
	Leaving bool
	// Coverage says whether the ring selects the object's namespace. Objects without a namespace are always selected.
	Coverage rings.Coverage
	// Kin is whom a controlled object follows; nil if that is nobody of the ring, or could not be found out. A main object needs none.
	Kin *resources.Kin
	// Unread names what stands between the object and its owner and could not be read, so that the owner is not known; empty if nothing.
	Unread string
	// Owner is what was read of the main object that the object follows; the zero value if there is none.
	Owner Owner
}

// Owner is the result of reading an owner.
type Owner struct {
	// Found is NotRead, Read, Missing, or Forbidden.
	Found pb.Found
	// Meta is its metadata if it was found; its uid may be another than that of the reference.
	Meta *metav1.PartialObjectMetadata
}
