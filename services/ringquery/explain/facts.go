// Package explain explains where an object is, where it belongs, why, and what happens next.
//
// [Gather] reads [Facts]. [Explain] derives an explanation from them. It sends no requests and uses no clock. Package
// plan decides what happens next. The rebalancer uses the same package, so that the two never disagree.
//
// # Invariants
//
//  1. There is always a finding. For an object that is fine, it explains why.
//  2. Findings are sorted by severity, the most severe first. Among equally severe ones, findings about the object come
//     first. Then, ring by ring, causes come before their effects.
//  3. A finding claims only what the facts show. Times by the clocks of other machines affect only the text of a
//     message and the choice between Info, Warning, and Error.
package explain

import (
	"context"
	"errors"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/ringquery/rings"
)

// Facts are the input of an explanation. They are read-only.
type Facts struct {
	// Now is the time of the answer, which the caller of [Gather] sets.
	Now time.Time
	// Object is the object in question.
	Object Object
	// NamespaceLabels are those of the object's namespace. Nil: it has no namespace, or the object could not be read.
	NamespaceLabels map[string]string
	// Rings are the rings that list the resource or of which the object has a label, sorted by name.
	Rings []Ring
	// Known are the keys of the labels of all rings. Nil: the question is about one ring, and the answer must not reveal
	// others.
	Known []contract.LabelKeys
}

// Object is the object in question.
type Object struct {
	// Resource is its resource.
	Resource resources.Resource
	// Namespace is empty for a cluster-scoped object.
	Namespace, Name string
	// Meta is its metadata. Nil: the server may not read it, and no ring lists its resource.
	Meta *metav1.PartialObjectMetadata
}

// message returns the object as in the API.
func (o *Object) message() *pb.ExplainedObject {
	res := &pb.ExplainedObject{
		Group:     o.Resource.GVR.Group,
		Resource:  o.Resource.GVR.Resource,
		Kind:      o.Resource.Kind.Kind,
		Namespace: o.Namespace,
		Name:      o.Name,
		Found:     pb.Found_FOUND_FORBIDDEN,
	}

	if o.Meta == nil {
		return res
	}

	res.Found = pb.Found_FOUND_YES
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
	// Subject is the object, with its resource as the ring has it. Without a role, neither the spec of the ring nor its
	// status contains the resource.
	Subject resources.Subject
	// Leaving is true if only the status contains it: the ring is about to release the objects of that resource.
	Leaving bool
	// Coverage reports whether the ring selects the object's namespace. Cluster-scoped objects are always covered.
	Coverage rings.Coverage
	// Kin is what the object follows, and its key. Nil: the ring has no role for it, or it is a controlled object without
	// such an owner.
	Kin *resources.Kin
	// Owner is the metadata of that owner. Its uid can differ from that of the reference. Nil: it does not exist.
	Owner *metav1.PartialObjectMetadata
}

// Gather reads an object, and what explains it in the named ring. Without a name, it reads what explains it in every
// ring that is related to it. It fails with [rings.ErrInvalid], [rings.ErrRingNotFound], or as rings.Objects.Get does.
// It fails with [rings.ErrNotAdded] if the named ring does not list the resource. It then does not read the object,
// because a user with access to one ring must not learn about other objects.
func Gather(ctx context.Context, from *rings.Rings, ring string, object rings.Reference) (*Facts, error) {
	asked, err := from.Select(ctx, ring)
	if err != nil {
		return nil, err
	}

	f := &Facts{Object: Object{Namespace: object.Namespace, Name: object.Name}}
	o := &f.Object

	if ring != "" {
		o.Resource, err = listed(from, asked[0], object)
	} else {
		f.Known = make([]contract.LabelKeys, 0, len(asked))
		for _, r := range asked {
			f.Known = append(f.Known, r.Keys)
		}

		o.Resource, err = from.Resource(object)
	}

	if err != nil {
		return nil, err
	}

	if err := object.CheckNamespace(o.Resource); err != nil {
		return nil, err
	}

	o.Meta, err = from.Objects.Get(ctx, o.Resource.GVR, types.NamespacedName{Namespace: o.Namespace, Name: o.Name})
	if err != nil && !errors.Is(err, rings.ErrForbidden) {
		return nil, err
	}

	q := &inquiry{Facts: f, from: from, ancestors: from.Objects.Ancestors(), forbidden: err}

	if err == nil && o.Namespace != "" {
		namespace, err := from.Objects.Get(ctx, rings.Namespaces, types.NamespacedName{Name: o.Namespace})
		if err != nil {
			return nil, err
		}

		f.NamespaceLabels = labels.Merge(nil, namespace.Labels) // not nil
	}

	for _, r := range asked {
		if err := q.add(ctx, r); err != nil {
			return nil, err
		}
	}

	return f, nil
}

// listed returns the resource of the reference, which the ring must list, or must have listed.
func listed(from *rings.Rings, ring rings.Ring, object rings.Reference) (resources.Resource, error) {
	if found, _, ok := rings.Lookup(from.Remembered(ring), object); ok {
		return found, nil
	}

	found, _, err := ring.Find(object)

	return found, err
}

// inquiry collects the facts about one object.
type inquiry struct {
	*Facts

	from      *rings.Rings
	ancestors resources.Ancestors
	// forbidden is the error if the object may not be read.
	forbidden error
}

// add adds the facts about one ring, if it is related to the object: among them, the main object that the object
// follows.
func (q *inquiry) add(ctx context.Context, r rings.Ring) error {
	meta, resource := q.Object.Meta, q.Object.Resource.GroupResource()
	fact := Ring{Ring: r, Coverage: r.Covers(q.Object.Namespace, q.NamespaceLabels)}
	of := resources.Subject{Object: meta}

	var has bool
	if of.Resource, of.Role, has = r.Resources.Find(resource); !has {
		fact.Resources = q.from.Remembered(r)
		of.Resource, of.Role, fact.Leaving = fact.Resources.Find(resource)
	}

	switch fact.Subject = of; {
	case meta == nil && of.Role != "":
		return q.forbidden
	case meta == nil, of.Role == "" && !rings.Labels(r.Keys, meta.Labels).Labels():
		return nil
	case of.Role != "":
		kin, ok, err := fact.Resources.KinOf(ctx, of, q.ancestors)
		if err != nil {
			return err
		}

		if ok {
			fact.Kin = &kin
		}
	}

	if fact.Kin != nil && fact.Kin.Owner != nil {
		owner, err := q.from.Objects.Get(ctx, fact.Kin.Owner.Resource.GVR, fact.Kin.Owner.NamespacedName)
		if err != nil && !errors.Is(err, rings.ErrNotFound) {
			return err
		}

		fact.Owner = owner
	}

	fact.Shards = q.from.Shards(ctx, r)
	q.from.Confirm(ctx, fact.Shards, meta.Labels[r.Keys.Shard])
	q.Rings = append(q.Rings, fact)

	return nil
}
