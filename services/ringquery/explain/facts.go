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
	// Role of the object's resource. Empty: neither the spec of the ring nor its status contains the resource.
	Role resources.Role
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
	q := &inquiry{from: from, ancestors: from.Objects.Ancestors()}
	q.facts.Object.Namespace, q.facts.Object.Name = object.Namespace, object.Name

	if err := q.find(ctx, ring, object); err != nil {
		return nil, err
	}

	if err := object.CheckNamespace(q.facts.Object.Resource); err != nil {
		return nil, err
	}

	if err := q.read(ctx); err != nil {
		return nil, err
	}

	for _, r := range q.rings {
		if err := q.add(ctx, r); err != nil {
			return nil, err
		}
	}

	return &q.facts, nil
}

// inquiry collects the facts about one object.
type inquiry struct {
	from      *rings.Rings
	rings     []rings.Ring
	facts     Facts
	ancestors resources.Ancestors
	// forbidden is the error if the object may not be read.
	forbidden error
}

// find finds the rings and the resource in question. A single ring must list the resource, or must have listed it.
func (q *inquiry) find(ctx context.Context, name string, object rings.Reference) (err error) {
	resource := &q.facts.Object.Resource

	if q.rings, err = q.from.Select(ctx, name); err != nil {
		return err
	}

	if name != "" {
		if *resource, _, err = q.rings[0].Find(object); err != nil {
			if found, _, leaving := rings.Lookup(q.from.Remembered(q.rings[0]), object); leaving {
				*resource, err = found, nil
			}
		}

		return err
	}

	q.facts.Known = make([]contract.LabelKeys, 0, len(q.rings))
	for _, r := range q.rings {
		q.facts.Known = append(q.facts.Known, r.Keys)
	}

	*resource, err = q.from.Resource(object)

	return err
}

// read reads the object and the labels of its namespace.
func (q *inquiry) read(ctx context.Context) (err error) {
	o := &q.facts.Object

	o.Meta, err = q.from.Objects.Get(ctx, o.Resource.GVR, types.NamespacedName{Namespace: o.Namespace, Name: o.Name})
	if errors.Is(err, rings.ErrForbidden) {
		q.forbidden = err
		return nil
	}

	if err != nil || o.Namespace == "" {
		return err
	}

	namespace, err := q.from.Objects.Get(ctx, rings.Namespaces, types.NamespacedName{Name: o.Namespace})
	if err == nil {
		q.facts.NamespaceLabels = labels.Merge(nil, namespace.Labels) // not nil
	}

	return err
}

// add adds the facts about one ring, if it is related to the object: among them, the main object that the object
// follows.
func (q *inquiry) add(ctx context.Context, r rings.Ring) error {
	o := &q.facts.Object
	fact := Ring{Ring: r, Coverage: r.Covers(o.Namespace, q.facts.NamespaceLabels)}

	resource, role, listed := r.Resources.Find(o.Resource.GroupResource())
	if !listed {
		fact.Resources = q.from.Remembered(r)
		resource, role, fact.Leaving = fact.Resources.Find(o.Resource.GroupResource())
	}

	switch fact.Role = role; {
	case o.Meta == nil && role != "":
		return q.forbidden
	case o.Meta == nil, role == "" && !rings.Labels(r.Keys, o.Meta.Labels).Labels():
		return nil
	case role != "":
		kin, ok, err := fact.Resources.KinOf(ctx, resources.Subject{Resource: resource, Role: role, Object: o.Meta},
			q.ancestors)
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
	q.from.Confirm(ctx, fact.Shards, o.Meta.Labels[r.Keys.Shard])
	q.facts.Rings = append(q.facts.Rings, fact)

	return nil
}
