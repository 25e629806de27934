package move

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/services/internal/plan"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/rebalancer/feed"
)

// Namespaces reports which namespaces a selector selects.
type Namespaces interface {
	// Selects reports whether the namespace exists and is selected.
	Selects(ctx context.Context, namespace string, selector labels.Selector) (bool, error)
}

// Lookup contains the sources of information about an object beyond the object itself.
type Lookup struct {
	Namespaces
	// Ancestors know the objects that an object's controller follows. They are not asked if the controller is a main
	// object.
	Ancestors *resources.Book
}

// Target is the desired state of a ring. It is immutable and safe for concurrent use.
type Target struct {
	// View contains the available shards and what they own.
	View *membership.View
	// Set contains the ring's resources, and the resources that have left the ring and may still carry labels.
	Set *resources.Set
	// Leaving are the resources that have left the ring; all resources if the ring is being deleted.
	Leaving map[schema.GroupResource]bool
	// Selector selects the namespaces that the ring covers.
	Selector labels.Selector
	// Revision changes whenever anything else changes that may put objects out of place.
	Revision int64
	// Narrow contains the namespaces that do not have to be watched. It does not affect where objects belong.
	Narrow Narrowing
}

// Same reports whether both targets are equivalent. A nil target is equivalent only to nil.
func (t *Target) Same(o *Target) bool {
	return t.Covers(o) && t.View.Fingerprint() == o.View.Fingerprint() &&
		slices.Equal(t.View.WorkingShards(), o.View.WorkingShards())
}

// Covers reports whether both targets are about the same objects. A nil target covers only the same as nil.
func (t *Target) Covers(o *Target) bool {
	if t == nil || o == nil || t.Revision != o.Revision ||
		// Objects may have got a shard, or another one, because of the namespaces that shards watch. No watch reports them.
		(t.View.Restricted() || o.View.Restricted()) && t.View.Fingerprint() != o.View.Fingerprint() {
		return false
	}

	return t.Selector.String() == o.Selector.String() && t.Set.Equal(o.Set) && maps.Equal(t.Leaving, o.Leaving)
}

// Assessment is the result of an assessment of an object: where it belongs.
type Assessment struct {
	// Object is the object in the form that the plan requires. Desired is the shard that a main object belongs to, see
	// [membership.View.Place], and that owns the key of another one; empty if the object does not belong to the ring, or
	// no shard is available that watches its namespace. Of its owner, only Belongs is known.
	plan.Object
	// Keyless reports whether the object is a main object of the ring that lacks the label, or the namespace, that its
	// key should be.
	Keyless bool
	// In is the namespace that a shard must watch to work on the object: that of the main object.
	In string
	// Main is the main object that a controlled object follows, see [resources.Kin]. It is nil for a main object, and for
	// an object that follows none.
	Main *resources.Owner
	// Above are the objects that the object's controller follows, nearest first. It is empty if the controller is the
	// main object.
	Above feed.Above
	// InPlace reports whether nothing has to be done about the object: it is in its place, or does not concern the
	// ring, or no shard is available that watches its namespace.
	InPlace bool
}

// Assess determines where an object belongs. It returns an error if its namespace, or an object that it follows, cannot
// be looked up, or if [Target.Unread] is true.
func (t *Target) Assess(ctx context.Context, lookup Lookup, o feed.Object) (Assessment, error) {
	r, role, ok := t.Set.Find(o.GVR.GroupResource())
	if !ok {
		return Assessment{InPlace: true}, nil
	}

	a := Assessment{Object: plan.Object{
		Shard: o.Shard, Labelled: o.Labelled, Draining: o.Draining,
		Controlled: role == resources.Controlled, Parent: r.Controls,
	}}

	if t.Unread(o) {
		return a, fmt.Errorf(
			"%s was read before the key of its resource, or the object selector of the ring, has changed", o.ID)
	}

	// Every version of an object that is acted on passes here first, so that what follows an object goes where it goes.
	if !a.Controlled && r.NeedsLabels() && r.Controls {
		lookup.Ancestors.SawLabels(r, resources.Sight{
			UID: o.UID, Value: o.KeyValue, Selected: !o.Unselected, Version: o.ResourceVersion,
		})
	}

	kin, concerned, err := t.Set.KinOf(ctx, subject(r, role, o), lookup.Ancestors)
	if err != nil {
		return a, err
	}

	a.Main, a.Above = kin.Owner, above(kin)

	if !concerned && !o.Labelled && !o.Draining {
		a.InPlace = true // as for almost all objects of a core resource: their namespaces do not have to be looked up

		return a, nil
	}

	if a.Belongs, err = t.covers(ctx, lookup, r, o.Namespace); err != nil {
		return a, err
	}

	a.Belongs = a.Belongs && concerned && (a.Controlled || !o.Unselected)
	a.In = kin.In(o.Namespace)
	a.Keyless = a.Belongs && !a.Controlled && kin.Keyless

	if owner := kin.Owner; owner != nil {
		if a.Owner.Belongs, err = t.covers(ctx, lookup, owner.Resource, owner.Namespace); err != nil {
			return a, err
		}

		// What has lost its owner keeps its shard, which may have to handle its finalizers.
		a.Owner.Belongs = a.Owner.Belongs && !kin.Unselected && (!kin.Orphaned || o.Labelled)
		a.Belongs = a.Belongs && a.Owner.Belongs && !slices.ContainsFunc(kin.Between,
			func(o resources.Owner) bool { return t.Leaving[o.Resource.GroupResource()] })
	}

	switch {
	case a.Belongs && a.Controlled:
		a.Desired, _ = t.View.OwnerIn(a.In, kin.Key)
	case a.Belongs:
		a.Desired, _ = t.View.Place(a.In, kin.Key, o.Shard)
	}

	if a.InPlace = !o.Labelled && !o.Draining; a.Belongs {
		a.InPlace = a.Desired == "" || o.Shard == a.Desired && !o.Draining
	}

	return a, nil
}

// OwnerID returns the ID of the main object that an object follows. A main object, and an object that follows none,
// follows itself.
func (a Assessment) OwnerID(o feed.Object) feed.ID {
	if a.Main == nil {
		return o.ID
	}

	return feed.ID{GVR: a.Main.Resource.GVR, Namespace: a.Main.Namespace, Name: a.Main.Name}
}

// above returns the objects that the object's controller follows.
func above(kin resources.Kin) (above feed.Above) {
	for i := range kin.Between {
		above[i] = kin.Owner.UID
		if i > 0 {
			above[i-1] = kin.Between[i].UID
		}
	}

	return above
}

// Unread reports whether it is not known where the object belongs, because another label was the key of its resource
// when it was read, or the ring had another selector.
func (t *Target) Unread(o feed.Object) bool {
	r, role, _ := t.Set.Find(o.GVR.GroupResource())

	return role == resources.Main && (r.Key.Label != "" && o.KeyLabel != r.Key.Label || o.Selector != r.Selector)
}

// subject returns an object in the form that [resources.Set.KinOf] requires.
func subject(r resources.Resource, role resources.Role, o feed.Object) resources.Subject {
	meta := &metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name}
	if o.KeyValue != "" {
		meta.Labels = map[string]string{o.KeyLabel: o.KeyValue}
	}

	if o.Controller != nil {
		meta.OwnerReferences = []metav1.OwnerReference{*o.Controller}
	}

	return resources.Subject{Resource: r, Role: role, Object: meta}
}

// covers reports whether the ring covers objects of the resource in the namespace.
func (t *Target) covers(
	ctx context.Context, namespaces Namespaces, r resources.Resource, namespace string,
) (bool, error) {
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

const (
	// fewLeftOut is the number of namespaces up to which a watch excludes them by name. fewCovered is the number of
	// namespaces up to which they are watched one by one.
	fewLeftOut, fewCovered = 32, 4
)

// Narrowing describes which namespaces do not have to be watched for objects without a shard: a core resource has many
// objects and changes that do not concern a ring. The zero value excludes no namespace.
type Narrowing struct {
	// Except are the namespaces to exclude, sorted. The ring covers none of them.
	Except []string
	// Only are the namespaces to watch if Single is true, sorted: all that the ring covers.
	Only   []string
	Single bool
}

// Narrow returns how to watch the namespaces that a ring covers. covered contains all existing namespaces by name. The
// result of an earlier call is kept while it is correct, because a change costs a list.
func Narrow(before Narrowing, covered map[string]bool) Narrowing {
	var only, except []string

	for _, name := range slices.Sorted(maps.Keys(covered)) {
		if covered[name] {
			only = append(only, name)
		} else {
			except = append(except, name)
		}
	}

	right := !slices.ContainsFunc(before.Except, func(name string) bool { return covered[name] })

	switch {
	case len(only) <= fewCovered && len(except) > len(only):
		return Narrowing{Single: true, Only: only}
	case !before.Single && len(before.Except) > 0 && right:
		return before
	}

	return Narrowing{Except: except[:min(len(except), fewLeftOut)]}
}

// Equal reports whether both watch the same namespaces in the same way.
func (n Narrowing) Equal(o Narrowing) bool {
	return n.Single == o.Single && slices.Equal(n.Only, o.Only) && slices.Equal(n.Except, o.Except)
}

// Fields returns the field selector that excludes namespaces.
func (n Narrowing) Fields() string {
	terms := make([]string, 0, len(n.Except))
	for _, name := range n.Except {
		terms = append(terms, "metadata.namespace!="+name)
	}

	return strings.Join(terms, ",")
}
