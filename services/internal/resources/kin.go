package resources

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/key"
)

// Ancestors tell who controls the objects that stand between a main object and those which follow it. They may be asked by several goroutines.
type Ancestors interface {
	// ControllerOf returns the owner reference of an object's controller; nil if it has none. found is false if there is no object of that name
	// and UID (any more).
	ControllerOf(ctx context.Context, of Owner) (controller *metav1.OwnerReference, found bool, err error)
}

// Kin is whom an object follows.
type Kin struct {
	// Key is the partition key: that of the main object.
	Key key.Key
	// Owner is the main object that a controlled object follows; nil for a main object. Where somebody between them is no more, it is that
	// one, as nobody knows whom it followed: such an owner does not exist.
	Owner *Owner
	// Between are those between the object and its owner, the nearest first. They exist.
	Between []Owner
}

// Subject is an object, and what its resource is to the ring; see [Set.Find].
type Subject struct {
	Resource Resource
	Role     Role
	Object   metav1.Object
}

// KinOf returns whom an object follows. ok is false if the object is no business of the ring: a controlled object without a
// controller; or whose controller, or that one's, is of none of the ring's kinds; or with too many between; see [v1alpha1.MaxDepth]. An error is that
// of the ancestors, which are asked for nothing else than who stands between.
func (s *Set) KinOf(ctx context.Context, of Subject, ancestors Ancestors) (kin Kin, ok bool, err error) {
	obj := of.Object
	if of.Role == Main {
		return Kin{Key: key.OfObject(of.Resource.Kind.GroupKind(), obj)}, true, nil
	}

	owner, its, ok := s.ControllerOf(obj)
	for ok && its == Controlled {
		if len(kin.Between) == v1alpha1.MaxDepth-2 {
			return Kin{}, false, nil
		}

		controller, found, err := ancestors.ControllerOf(ctx, *owner)
		if err != nil {
			return Kin{}, false, err
		}

		if !found {
			break
		}

		kin.Between = append(kin.Between, *owner)
		owner, its, ok = s.controller(owner.Namespace, controller)
	}

	if !ok {
		return Kin{}, false, nil
	}

	kin.Owner = owner
	kin.Key = key.OfOwner(owner.Resource.Kind.GroupKind(), owner.Namespace, owner.Name)

	return kin, true, nil
}

// ControllerOf returns the object that controls another one, and the role of its resource; ok is false if there is none among the ring's kinds.
func (s *Set) ControllerOf(obj metav1.Object) (owner *Owner, role Role, ok bool) {
	return s.controller(obj.GetNamespace(), metav1.GetControllerOfNoCopy(obj))
}

// controller returns the object that a reference from the namespace names. Whoever is in no namespace has nobody in one for an owner.
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
