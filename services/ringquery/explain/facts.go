// Package explain explains where an object is, where it belongs, why, and what happens next.
//
// [Answer] gathers [Facts]. [Explain] derives an explanation from them. It sends no requests and uses no clock. Package plan decides what
// happens next. The rebalancer uses the same package, so that the two never disagree.
//
// # Invariants
//
//  1. There is always a finding. For an object that is fine, it explains why.
//  2. Findings are sorted by severity, the most severe first. Among equally severe ones, findings about the object come first. Then, ring
//     by ring, causes come before their effects.
//  3. A finding claims only what the facts show. Times by the clocks of other machines affect only the text of a message and the choice
//     between Info, Warning, and Error.
package explain

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/ringquery/rings"
)

// Facts are the input of an explanation. They are read-only.
type Facts struct {
	// Now is the time of the answer.
	Now time.Time
	// Object is the object in question.
	Object Object
	// NamespaceLabels are those of the object's namespace. Nil: it has no namespace, or the labels could not be read.
	NamespaceLabels map[string]string
	// Rings are the rings that list the resource or of which the object has a label, sorted by name.
	Rings []Ring
	// Known are the keys of the labels of all rings. Nil: the question is about one ring, and the answer must not reveal others.
	Known []contract.LabelKeys
	// Controlling are the names of the rings that list the kind of the object's controller, but not the object's resource.
	Controlling []string
}

// Object is the object in question.
type Object struct {
	// Resource is its resource.
	Resource resources.Resource
	// Namespace is empty for a cluster-scoped object.
	Namespace, Name string
	// Meta is its metadata. Nil: the server may not read it.
	Meta *metav1.PartialObjectMetadata
}

// metadata returns the metadata that was read, or else only the object's name.
func (o *Object) metadata() *metav1.PartialObjectMetadata {
	if o.Meta != nil {
		return o.Meta
	}

	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name}}
}

// message returns the object as in the API.
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

// Ring holds the facts about one ring, and about the object in it.
type Ring struct {
	// Ring is the ring. Its Resources are those that it lists and, if Leaving, those that it listed before.
	rings.Ring

	// Shards are all Leases of the ring, sorted by name, then namespace.
	Shards []*pb.Shard
	// Role of the object's resource. Empty: neither the spec of the ring nor its status contains the resource.
	Role resources.Role
	// Leaving is true if only the status contains it: the ring is about to release the objects of that resource.
	Leaving bool
	// Coverage reports whether the ring selects the object's namespace. Cluster-scoped objects are always covered.
	Coverage rings.Coverage
	// Kin is the owner that a controlled object follows. Nil for a main object, or if there is no such owner or it is not known.
	Kin *resources.Kin
	// Unread names an object between the object and its owner that could not be read, so that the owner is not known. Empty: none.
	Unread string
	// Owner is the result of reading the main object that the object follows. Zero: there is none.
	Owner Owner
}

// Owner is the result of reading an owner.
type Owner struct {
	// Found is NotRead, Read, Missing, or Forbidden.
	Found pb.Found
	// Meta is its metadata if it was found. Its uid can differ from that of the reference.
	Meta *metav1.PartialObjectMetadata
}
