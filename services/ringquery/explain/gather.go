package explain

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/ringquery/rings"
)

// Question asks about one object.
type Question struct {
	// Ring limits the answer to one ring. Empty: the answer is about every ring that is related to the object.
	Ring string
	// Object is the object in question.
	Object rings.Reference
	// Now is the time of the answer.
	Now time.Time
}

// Answer reads an object and explains it in the named ring, or in every ring that is related to it. It fails with [rings.ErrInvalid],
// [rings.ErrRingNotFound], or as rings.Objects.Get does. It fails with [rings.ErrNotSharded] if the named ring does not list the
// resource. It then does not read the object, because a user with access to one ring must not learn about other objects. If the object
// may not be read, the answer contains what follows from its name.
func Answer(ctx context.Context, from *rings.Rings, question Question) (*pb.ExplainResponse, error) {
	q, err := inquire(ctx, from, question)
	if err != nil {
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

	return Explain(&q.facts), nil
}

// inquiry collects the facts about one object.
type inquiry struct {
	from  *rings.Rings
	rings []rings.Ring
	facts Facts

	ancestors resources.Ancestors
	owners    map[resources.Owner]Owner
}

// inquire finds the rings and the resource of the question.
func inquire(ctx context.Context, from *rings.Rings, question Question) (*inquiry, error) {
	ref := question.Object
	q := &inquiry{
		from: from, ancestors: from.Objects.Ancestors(), owners: map[resources.Owner]Owner{},
		facts: Facts{Now: question.Now, Object: Object{Namespace: ref.Namespace, Name: ref.Name}},
	}

	about := q.allRings
	if question.Ring != "" {
		about = func(ctx context.Context, ref rings.Reference) error { return q.oneRing(ctx, ref, question.Ring) }
	}

	if err := about(ctx, ref); err != nil {
		return nil, err
	}

	return q, ref.CheckNamespace(q.facts.Object.Resource)
}

// oneRing prepares a question about one ring. The ring must list the resource, or must have listed it.
func (q *inquiry) oneRing(ctx context.Context, ref rings.Reference, name string) error {
	ring, err := q.from.Get(ctx, name)
	if err != nil {
		return err
	}

	q.rings = []rings.Ring{ring}

	found, _, err := ring.Find(ref)
	if err != nil {
		set := q.from.Resources.Remembered(ring)
		if set == nil {
			return err
		}

		var leaving bool
		if found, _, leaving = rings.Lookup(set, ref); !leaving {
			return err
		}
	}

	q.facts.Object.Resource = found

	return nil
}

// allRings prepares a question about all rings.
func (q *inquiry) allRings(ctx context.Context, ref rings.Reference) (err error) {
	if q.rings, err = q.from.All(ctx); err != nil {
		return err
	}

	q.facts.Known = make([]v1alpha1.LabelKeys, 0, len(q.rings))
	for _, r := range q.rings {
		q.facts.Known = append(q.facts.Known, r.Keys)
	}

	q.facts.Object.Resource, err = q.from.Resources.Find(ref)

	return err
}

// read reads the object and the labels of its namespace.
func (q *inquiry) read(ctx context.Context) error {
	o := &q.facts.Object

	obj, err := q.from.Objects.Get(ctx, o.Resource.GVR, types.NamespacedName{Namespace: o.Namespace, Name: o.Name})

	switch {
	case errors.Is(err, rings.ErrNotFound):
		return fmt.Errorf("%w: %s", rings.ErrNotFound,
			rings.Reference{Group: o.Resource.GVR.Group, Resource: o.Resource.GVR.Resource, Namespace: o.Namespace, Name: o.Name})
	case errors.Is(err, rings.ErrForbidden):
	case err != nil:
		return err
	default:
		o.Meta = obj
	}

	if o.Namespace == "" {
		return nil
	}

	has, err := q.from.Objects.NamespaceLabels(ctx, o.Namespace)
	if err != nil && !errors.Is(err, rings.ErrForbidden) && !errors.Is(err, rings.ErrNotFound) {
		return err
	}

	q.facts.NamespaceLabels = has

	return nil
}

// add adds the facts about one ring, if it is related to the object.
func (q *inquiry) add(ctx context.Context, r rings.Ring) error {
	o := &q.facts.Object
	fact := Ring{Ring: r, Coverage: r.Covers(o.Namespace, q.facts.NamespaceLabels)}

	if _, role, ok := r.Resources.Find(o.Resource.GroupResource()); ok {
		fact.Role = role
	} else if set := q.from.Resources.Remembered(r); set != nil {
		_, fact.Role, fact.Leaving = set.Find(o.Resource.GroupResource())
		fact.Resources = set
	}

	if fact.Role == "" && !q.carries(r.Keys) {
		if q.controls(r) {
			q.facts.Controlling = append(q.facts.Controlling, r.Name)
		}

		return nil
	}

	if err := q.readOwner(ctx, &fact); err != nil {
		return err
	}

	fact.Shards = q.from.Shards(r)
	q.facts.Rings = append(q.facts.Rings, fact)

	return nil
}

// carries reports whether the object has a label of the ring.
func (q *inquiry) carries(ring v1alpha1.LabelKeys) bool {
	if q.facts.Object.Meta == nil {
		return false
	}

	_, shard := q.facts.Object.Meta.Labels[ring.Shard]
	_, drain := q.facts.Object.Meta.Labels[ring.Drain]

	return shard || drain
}

// controls reports whether the object's controller is of a kind of the ring.
func (q *inquiry) controls(r rings.Ring) bool {
	if q.facts.Object.Meta == nil {
		return false
	}

	_, _, ok := r.Resources.ControllerOf(q.facts.Object.Meta)

	return ok
}

// readOwner finds the main object that the object follows, and reads it.
func (q *inquiry) readOwner(ctx context.Context, r *Ring) error {
	if r.Role != resources.Controlled || q.facts.Object.Meta == nil {
		return nil
	}

	kin, ok, err := r.Resources.KinOf(ctx, resources.Subject{Resource: q.facts.Object.Resource, Role: r.Role, Object: q.facts.Object.Meta}, q.ancestors)

	switch {
	case errors.Is(err, rings.ErrForbidden):
		nearest, _, _ := r.Resources.ControllerOf(q.facts.Object.Meta)
		r.Unread = nearest.Resource.Kind.Kind + " " + nearest.Name

		return nil
	case err != nil:
		return err
	case !ok:
		return nil
	}

	r.Kin = &kin
	owner := kin.Owner

	known, ok := q.owners[*owner]
	if !ok {
		obj, err := q.from.Objects.Get(ctx, owner.Resource.GVR, owner.NamespacedName)

		switch {
		case errors.Is(err, rings.ErrNotFound):
			known.Found = Missing
		case errors.Is(err, rings.ErrForbidden):
			known.Found = Forbidden
		case err != nil:
			return err
		default:
			known = Owner{Found: Read, Meta: obj}
		}

		q.owners[*owner] = known
	}

	r.Owner = known

	return nil
}
