// Package placement says where an object of a ring belongs, by all that can be known without a request.
//
// It reads a [Target], which is what the ring wants now, and an object's metadata; it returns an [Assessment]. Only where a
// controlled object's owner is, it does not know: it takes for granted that the owner is where the ring would have it.
package placement

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/services/internal/plan"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/rebalancer/objects"
)

// Namespaces says which namespaces a selector selects.
type Namespaces interface {
	// Selects reports whether the namespace exists and is selected.
	Selects(ctx context.Context, namespace string, selector labels.Selector) (bool, error)
}

// World is what has to be asked about an object beyond the object itself.
type World struct {
	Namespaces
	// Ancestors say whom those follow that an object follows. They are not asked about an object whose controller is a main one.
	resources.Ancestors
}

// Target is what a ring wants. It is immutable and may be used by several goroutines.
type Target struct {
	// View says which shards are available and what they own.
	View *membership.View
	// Set holds the ring's resources, and those that have left it and may still carry labels.
	Set *resources.Set
	// Leaving are the resources that have left the ring; all, if the ring is being deleted.
	Leaving map[schema.GroupResource]bool
	// Selector selects the namespaces that the ring covers.
	Selector labels.Selector
	// Revision differs if anything else has changed by which objects may be out of place.
	Revision int64
	// Narrow says which namespaces need not be watched. It changes nothing about where objects belong.
	Narrow Narrowing
}

// Same reports whether the way to one target is the way to the other too. A nil target is the same as none.
func (t *Target) Same(o *Target) bool {
	return t.Covers(o) && t.View.Fingerprint() == o.View.Fingerprint()
}

// Covers reports whether both targets are about the same objects. A nil target covers the same as none.
func (t *Target) Covers(o *Target) bool {
	if t == nil || o == nil || t.Revision != o.Revision || t.Selector.String() != o.Selector.String() ||
		!t.Set.Equal(o.Set) || len(t.Leaving) != len(o.Leaving) {
		return false
	}

	for gr := range t.Leaving {
		if !o.Leaving[gr] {
			return false
		}
	}

	return true
}

// Assessment is where an object belongs.
type Assessment struct {
	// Role is what the object's resource is to the ring; empty if the ring does not have it, or it is not served.
	Role resources.Role
	// Parent reports whether others may follow the object.
	Parent bool
	// Belongs reports whether the ring covers the object, and for a controlled one its owner.
	Belongs bool
	// Desired is the shard that the ring gives the object's key to; empty if it does not belong, or no shard is available.
	Desired string
	// Owner is the main object that a controlled object follows, see [resources.Kin]; nil for a main object, and for one that follows none.
	Owner *resources.Owner
	// Above are those that the object's controller follows in turn, the nearest first; all empty if that is the owner.
	Above objects.Above
	// OwnerBelongs reports whether the ring covers the owner.
	OwnerBelongs bool
	// InPlace reports whether nothing is to be done about the object: it is where it belongs, or nobody's concern, or no shard is
	// available.
	InPlace bool
}

// Assess says where an object belongs. The error is that of the look at its namespace, or at those it follows.
func (t *Target) Assess(ctx context.Context, world World, o objects.Object) (Assessment, error) {
	r, role, ok := t.Set.Find(o.GVR.GroupResource())
	if !ok {
		return Assessment{InPlace: true}, nil
	}

	a := Assessment{Role: role, Parent: r.Controls}

	kin, concerned, err := t.Set.KinOf(ctx, subject(r, role, o), world.Ancestors)
	if err != nil {
		return a, err
	}

	if !concerned && !o.Labelled && !o.Draining {
		a.InPlace = true // as nearly all objects of a core resource are: their namespaces need not be looked up

		return a, nil
	}

	covered, err := t.covers(ctx, world, r, o.Namespace)
	if err != nil {
		return a, err
	}

	a.Belongs = concerned && covered

	if owner := kin.Owner; owner != nil {
		a.Owner, a.Above = owner, above(kin)
		if a.OwnerBelongs, err = t.covers(ctx, world, owner.Resource, owner.Namespace); err != nil {
			return a, err
		}

		a.Belongs = a.Belongs && a.OwnerBelongs
	}

	if a.Belongs {
		a.Desired, _ = t.View.Owner(kin.Key)
	}

	switch {
	case !a.Belongs:
		a.InPlace = !o.Labelled && !o.Draining
	case a.Desired == "":
		a.InPlace = true
	default:
		a.InPlace = o.Shard == a.Desired && !o.Draining
	}

	return a, nil
}

// Input returns what the plan needs to know of an object that was assessed; [plan.Object.Owner] is left out.
func (a Assessment) Input(o objects.Object) plan.Object {
	return plan.Object{
		Shard: o.Shard, Labelled: o.Labelled, Draining: o.Draining,
		Belongs: a.Belongs, Desired: a.Desired, Controlled: a.Role == resources.Controlled, Parent: a.Parent,
	}
}

// OwnerID names the main object that an object follows. A main object follows itself, and so does one that follows none.
func (a Assessment) OwnerID(o objects.Object) objects.ID {
	if a.Owner == nil {
		return o.ID
	}

	return objects.ID{GVR: a.Owner.Resource.GVR, Namespace: a.Owner.Namespace, Name: a.Owner.Name}
}

// Above returns those that the object's controller follows, as [Assessment.Above] does; none if the ring has nothing to do with the object. The error
// is that of the look at them.
func (t *Target) Above(ctx context.Context, world World, o objects.Object) (objects.Above, error) {
	r, role, ok := t.Set.Find(o.GVR.GroupResource())
	if !ok {
		return objects.Above{}, nil
	}

	kin, _, err := t.Set.KinOf(ctx, subject(r, role, o), world.Ancestors)

	return above(kin), err
}

// above returns those that the object's controller follows.
func above(kin resources.Kin) (above objects.Above) {
	if len(kin.Between) == 0 {
		return above
	}

	n := 0
	for _, o := range kin.Between[1:] {
		above[n] = o.UID
		n++
	}

	above[n] = kin.Owner.UID

	return above
}

// subject returns an object as [resources.Set.KinOf] asks for it.
func subject(r resources.Resource, role resources.Role, o objects.Object) resources.Subject {
	meta := &metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name}
	if o.Controller != nil {
		meta.OwnerReferences = []metav1.OwnerReference{*o.Controller}
	}

	return resources.Subject{Resource: r, Role: role, Object: meta}
}

// covers reports whether the ring covers objects of the resource in the namespace.
func (t *Target) covers(ctx context.Context, namespaces Namespaces, r resources.Resource, namespace string) (bool, error) {
	if t.Leaving[r.GroupResource()] {
		return false, nil
	}

	if !r.Namespaced {
		return true, nil
	}

	selected, err := namespaces.Selects(ctx, namespace, t.Selector)
	if err != nil {
		return false, fmt.Errorf("look up namespace %s: %w", namespace, err)
	}

	return selected, nil
}
