package resources

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/services/internal/key"
)

// Ancestors returns what the keys of objects depend on that follow others: the controllers of objects that stand between a main object
// and the objects that follow it, and labels of the main object. It is safe for concurrent use.
type Ancestors interface {
	// ControllerOf returns the owner reference of an object's controller; nil if it has none. found is false if no object with
	// that name and UID exists (any more).
	ControllerOf(ctx context.Context, of Owner) (controller *metav1.OwnerReference, found bool, err error)
	// LabelsOf returns what the labels of a main object decide, whose key is a label, or whose resource has a selector. found is false if no object
	// with that name and UID exists (any more).
	LabelsOf(ctx context.Context, of Owner) (labels Labels, found bool, err error)
}

// Labels are what the labels of a main object decide about objects that follow it.
type Labels struct {
	// All are the label that is its key, and possibly others.
	All map[string]string
	// Selected reports whether the selector of its resource selects it.
	Selected bool
}

// Kin is what an object follows.
type Kin struct {
	// Key is the partition key, which is that of the main object.
	Key key.Key
	// Owner is the main object that a controlled object follows; nil for a main object. If an object between them no longer
	// exists, Owner is that object, because what it followed is not known: such an owner does not exist.
	Owner *Owner
	// Between are the objects between the object and its owner, the nearest first. They exist.
	Between []Owner
	// Keyless reports whether the object that determines the key lacks what its resource's rule asks for. The key is then that of its
	// name.
	Keyless bool
	// Labels are labels of the owner if its key is a label, or its resource has a selector, as [Ancestors.LabelsOf] returned them; nil otherwise, and
	// if the owner does not exist.
	Labels map[string]string
	// Unselected reports whether the owner exists and the selector of its resource does not select it. Orphaned reports whether that is not known in a
	// ring with a selector, because the owner does not exist.
	Unselected, Orphaned bool
}

// In returns the namespace of the main object, given that of the object itself. Where a shard watches it decides which shards may have both.
func (k Kin) In(namespace string) string {
	if k.Owner != nil {
		return k.Owner.Namespace
	}

	return namespace
}

// Subject is an object, and the role of its resource in the ring; see [Set.Find].
type Subject struct {
	Resource Resource
	Role     Role
	Object   metav1.Object
}

// KinOf returns what an object follows. ok is false if the object is not part of the ring: it is a controlled object without a
// controller, or its controller, or one further up, is of none of the ring's kinds, or too many objects are in between; see
// [contract.MaxDepth]. An error is that of the ancestors, which are only asked about objects in between, and about main objects whose
// labels decide something; see [Resource.NeedsLabels]. Whether the ring selects a main object is not part of the answer for that object itself.
func (s *Set) KinOf(ctx context.Context, of Subject, ancestors Ancestors) (kin Kin, ok bool, err error) {
	obj := of.Object
	if of.Role == Main {
		k, found := of.Resource.Key.Of(of.Resource.Kind.GroupKind(), obj)

		return Kin{Key: k, Keyless: !found}, true, nil
	}

	owner, its, ok := s.ControllerOf(obj)
	for ok && its == Controlled {
		if len(kin.Between) == contract.MaxDepth-2 {
			return Kin{}, false, nil
		}

		controller, found, err := ancestors.ControllerOf(ctx, *owner)
		if err != nil {
			return Kin{}, false, err
		}

		if !found {
			kin.Orphaned = s.selector != ""

			break
		}

		kin.Between = append(kin.Between, *owner)
		owner, its, ok = s.controller(owner.Namespace, controller)
	}

	if !ok {
		return Kin{}, false, nil
	}

	if kin.Owner = owner; owner.Resource.NeedsLabels() {
		has, found, err := ancestors.LabelsOf(ctx, *owner)
		if err != nil {
			return Kin{}, false, err
		}

		kin.Labels = has.All
		kin.Orphaned = !found && owner.Resource.Selector != ""
		kin.Unselected = found && !has.Selected
	}

	byName := key.OfOwner(owner.Resource.Kind.GroupKind(), owner.Namespace, owner.Name)
	k, found := owner.Resource.Key.OfParts(byName, kin.Labels[owner.Resource.Key.Label])
	kin.Key, kin.Keyless = k, !found

	return kin, true, nil
}

// NeedsLabels reports whether labels of an object of the resource decide about objects that follow it: the resource is a main resource whose key is a
// label, or which has a selector.
func (r Resource) NeedsLabels() bool { return r.Key.Label != "" || r.Selector != "" }

// ControllerOf returns the object that controls another one, and the role of its resource. ok is false if there is none among the
// ring's kinds.
func (s *Set) ControllerOf(obj metav1.Object) (owner *Owner, role Role, ok bool) {
	return s.controller(obj.GetNamespace(), metav1.GetControllerOfNoCopy(obj))
}

// controller returns the object that a reference from the namespace names. A cluster-scoped object cannot have an owner in a
// namespace.
func (s *Set) controller(namespace string, ref *metav1.OwnerReference) (*Owner, Role, bool) {
	if ref == nil {
		return nil, "", false
	}

	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return nil, "", false
	}

	e, ok := s.byKind[gv.WithKind(ref.Kind).GroupKind()]
	if !ok || e.resource.Namespaced && namespace == "" {
		return nil, "", false
	}

	if !e.resource.Namespaced {
		namespace = ""
	}

	return &Owner{
		Resource:       e.resource,
		NamespacedName: types.NamespacedName{Namespace: namespace, Name: ref.Name},
		UID:            ref.UID,
	}, e.role, true
}
