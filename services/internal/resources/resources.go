// Package resources says what a ring's resources are on one API server, and which partition key an object of them has.
//
// A ring names resources; objects and owner references name kinds. The package asks a RESTMapper once per resource and
// answers from then on without a request. A [Set] is immutable.
package resources

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/key"
)

// Role is what a resource is to a ring. Its zero value is not a role.
type Role string

const (
	// Main is a resource whose objects are assigned by their own names.
	Main Role = "main"
	// Controlled is a resource whose objects follow the main object that controls them.
	Controlled Role = "controlled"
)

// Resource is a resource as the API server serves it.
type Resource struct {
	// GVR names the resource in the version that the API server prefers.
	GVR schema.GroupVersionResource
	// Kind is the kind of its objects, in the same version.
	Kind schema.GroupVersionKind
	// Namespaced is false for a cluster-scoped resource.
	Namespaced bool
}

// Missing is a resource of a ring that the API server does not serve, or could not be asked about.
type Missing struct {
	schema.GroupResource
	// Err says why.
	Err error
}

// Set is what a ring's resources are. The zero value has none.
type Set struct {
	main       []Resource
	controlled []Resource
	missing    []Missing
	byResource map[schema.GroupResource]entry
	mainByKind map[schema.GroupKind]Resource
}

type entry struct {
	resource Resource
	role     Role
}

// Owner is the main object that a controlled object follows.
type Owner struct {
	// Resource is the owner's resource, one of the ring's main resources.
	Resource Resource
	// NamespacedName names the owner; the namespace is empty if its resource is cluster-scoped.
	types.NamespacedName
	// UID is the owner's, as the reference has it.
	UID types.UID
}

// Resolve asks the mapper for every resource of a ring. It does not fail as a whole: what cannot be resolved is in
// [Set.Missing], and the rest works. A resource that is listed as main and as controlled is taken as main. The spec is not
// changed. Resolve may send discovery requests, if the mapper does.
func Resolve(mapper meta.RESTMapper, spec v1alpha1.ClusterRingSpec) *Set {
	s := &Set{
		byResource: map[schema.GroupResource]entry{},
		mainByKind: map[schema.GroupKind]Resource{},
	}

	for _, r := range spec.Resources {
		if res, ok := s.add(mapper, schema.GroupResource{Group: r.Group, Resource: r.Resource}, Main); ok {
			s.mainByKind[res.Kind.GroupKind()] = res
		}
	}

	for _, r := range spec.Resources {
		for _, c := range r.ControlledResources {
			s.add(mapper, schema.GroupResource{Group: c.Group, Resource: c.Resource}, Controlled)
		}
	}

	return s
}

func (s *Set) add(mapper meta.RESTMapper, gr schema.GroupResource, role Role) (Resource, bool) {
	if _, known := s.byResource[gr]; known {
		return Resource{}, false
	}

	res, err := lookup(mapper, gr)
	if err != nil {
		s.missing = append(s.missing, Missing{GroupResource: gr, Err: err})
		return Resource{}, false
	}

	s.byResource[gr] = entry{resource: res, role: role}
	if role == Main {
		s.main = append(s.main, res)
	} else {
		s.controlled = append(s.controlled, res)
	}

	return res, true
}

func lookup(mapper meta.RESTMapper, gr schema.GroupResource) (Resource, error) {
	kind, err := mapper.KindFor(gr.WithVersion(""))
	if err != nil {
		return Resource{}, fmt.Errorf("find the kind of resource %s: %w", gr, err)
	}

	// A mapper may complete a prefix of a group or a singular name; a ring must mean just what it says.
	mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return Resource{}, fmt.Errorf("find how resource %s is served: %w", gr, err)
	}

	if got := mapping.Resource.GroupResource(); got != gr {
		return Resource{}, fmt.Errorf("resource %s is not served; did you mean %s?", gr, got)
	}

	return Resource{
		GVR:        mapping.Resource,
		Kind:       mapping.GroupVersionKind,
		Namespaced: mapping.Scope.Name() == meta.RESTScopeNameNamespace,
	}, nil
}

// GroupResource returns the resource without its version.
func (r Resource) GroupResource() schema.GroupResource { return r.GVR.GroupResource() }

// Main returns the main resources that are served, in the order of the ring. The result is shared: do not change it.
func (s *Set) Main() []Resource { return s.main }

// Controlled returns the controlled resources that are served, in the order of the ring. The result is shared: do not
// change it.
func (s *Set) Controlled() []Resource { return s.controlled }

// Missing returns the resources that could not be resolved. The result is shared: do not change it.
func (s *Set) Missing() []Missing { return s.missing }

// MissingMessage says in one sentence which resources are missing, in a stable order; empty if none is.
func (s *Set) MissingMessage() string {
	if len(s.missing) == 0 {
		return ""
	}

	names := make([]string, 0, len(s.missing))
	for _, m := range s.missing {
		if meta.IsNoMatchError(m.Err) {
			names = append(names, m.String())
		} else {
			names = append(names, m.String()+" ("+m.Err.Error()+")")
		}
	}

	slices.Sort(names)

	return "the API server does not serve " + strings.Join(names, ", ") + "; is the CustomResourceDefinition installed?"
}

// Find returns a resource of the ring and its role; ok is false if the ring does not have it or it is not served.
func (s *Set) Find(gr schema.GroupResource) (r Resource, role Role, ok bool) {
	e, ok := s.byResource[gr]

	return e.resource, e.role, ok
}

// MainByKind returns the main resource whose objects are of a kind; ok is false if the ring has none such.
func (s *Set) MainByKind(gk schema.GroupKind) (Resource, bool) {
	r, ok := s.mainByKind[gk]

	return r, ok
}

// Equal says whether two sets hold the same resources, roles, scopes and missing resources.
func (s *Set) Equal(o *Set) bool {
	gr := func(a, b Missing) int { return cmp.Compare(a.String(), b.String()) }
	missing := func(s *Set) []Missing { return slices.SortedFunc(slices.Values(s.missing), gr) }

	return slices.Equal(s.main, o.main) && slices.Equal(s.controlled, o.controlled) &&
		slices.EqualFunc(missing(s), missing(o), func(a, b Missing) bool { return a.GroupResource == b.GroupResource })
}

// KeyOf returns the partition key of an object of resource r. For a controlled object it is the key of its owner, which is
// returned too; owner is nil for a main object. ok is false if the object is no business of the ring: a controlled object
// without a controller, or whose controller is not of one of the ring's main kinds.
func (s *Set) KeyOf(r Resource, role Role, obj metav1.Object) (k key.Key, owner *Owner, ok bool) {
	if role == Main {
		return key.OfObject(r.Kind.GroupKind(), obj), nil, true
	}

	owner, ok = s.OwnerOf(obj.GetNamespace(), obj.GetOwnerReferences())
	if !ok {
		return key.Key{}, nil, false
	}

	return key.OfOwner(owner.Resource.Kind.GroupKind(), owner.Namespace, owner.Name), owner, true
}

// OwnerOf returns the main object that controls an object in the namespace with these owner references; ok is false if
// there is none among the ring's main kinds.
func (s *Set) OwnerOf(namespace string, refs []metav1.OwnerReference) (*Owner, bool) {
	i := slices.IndexFunc(refs, func(r metav1.OwnerReference) bool { return r.Controller != nil && *r.Controller })
	if i < 0 {
		return nil, false
	}

	gv, err := schema.ParseGroupVersion(refs[i].APIVersion)
	if err != nil {
		return nil, false
	}

	res, ok := s.MainByKind(gv.WithKind(refs[i].Kind).GroupKind())
	if !ok {
		return nil, false
	}

	if !res.Namespaced {
		namespace = ""
	}

	return &Owner{
		Resource:       res,
		NamespacedName: types.NamespacedName{Namespace: namespace, Name: refs[i].Name},
		UID:            refs[i].UID,
	}, true
}
