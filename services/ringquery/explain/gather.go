package explain

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
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
// [rings.ErrRingNotFound], or as rings.Objects.Get does. It fails with [rings.ErrNotAdded] if the named ring does not list the
// resource. It then does not read the object, because a user with access to one ring must not learn about other objects. If the object
// may not be read, the answer contains what follows from its name.
func Answer(ctx context.Context, from *rings.Rings, question Question) (*pb.ExplainResponse, error) {
	q := &inquiry{from: from, ancestors: from.Objects.Ancestors(), facts: Facts{
		Now: question.Now, Object: Object{Namespace: question.Object.Namespace, Name: question.Object.Name},
	}}

	if err := q.find(ctx, question); err != nil {
		return nil, err
	}

	if err := question.Object.CheckNamespace(q.facts.Object.Resource); err != nil {
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
	from      *rings.Rings
	rings     []rings.Ring
	facts     Facts
	ancestors resources.Ancestors
}

// find finds the rings and the resource in question. A single ring must list the resource, or must have listed it.
func (q *inquiry) find(ctx context.Context, question Question) (err error) {
	resource := &q.facts.Object.Resource

	if question.Ring == "" {
		if q.rings, err = q.from.All(ctx); err != nil {
			return err
		}

		q.facts.Known = make([]contract.LabelKeys, 0, len(q.rings))
		for _, r := range q.rings {
			q.facts.Known = append(q.facts.Known, r.Keys)
		}

		*resource, err = q.from.Resources.Find(question.Object)

		return err
	}

	ring, err := q.from.Get(ctx, question.Ring)
	if err != nil {
		return err
	}

	q.rings = []rings.Ring{ring}

	if *resource, _, err = ring.Find(question.Object); err != nil {
		if found, _, leaving := rings.Lookup(q.from.Resources.Remembered(ring), question.Object); leaving {
			*resource, err = found, nil
		}
	}

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
	} else {
		fact.Resources = q.from.Resources.Remembered(r)
		_, fact.Role, fact.Leaving = fact.Resources.Find(o.Resource.GroupResource())
	}

	if fact.Role == "" && !rings.Labels(r.Keys, o.metadata().Labels).Labels() {
		if _, _, ok := r.Resources.ControllerOf(o.metadata()); ok {
			q.facts.Controlling = append(q.facts.Controlling, r.Name)
		}

		return nil
	}

	if err := q.readOwner(ctx, &fact); err != nil {
		return err
	}

	fact.Shards = q.from.Shards(r)
	q.from.Confirm(ctx, fact.Shards, o.metadata().Labels[r.Keys.Shard])
	q.facts.Rings = append(q.facts.Rings, fact)

	return nil
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

	obj, err := q.from.Objects.Get(ctx, kin.Owner.Resource.GVR, kin.Owner.NamespacedName)

	switch {
	case errors.Is(err, rings.ErrNotFound):
		r.Owner.Found = Missing
	case errors.Is(err, rings.ErrForbidden):
		r.Owner.Found = Forbidden
	case err != nil:
		return err
	default:
		r.Owner = Owner{Found: Read, Meta: obj}
	}

	return nil
}
