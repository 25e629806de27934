// Package resources determines which resources of a ring one API server serves, and which partition key their objects
// have.
//
// A ring names resources; objects and owner references name kinds. One [Resolver] per process uses discovery to track
// what the API server serves, and answers for all rings from memory with a [Set], which is immutable. It writes
// nothing.
package resources

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/key"
)

// Role is the role of a resource in a ring. Its zero value is not a role.
type Role string

const (
	// Main is a resource whose objects are assigned by their own keys.
	Main Role = "main"
	// Controlled is a resource whose objects follow the main object that controls them, directly or through other objects.
	Controlled Role = "controlled"
)

// Resource is a resource as the API server serves it.
type Resource struct {
	// GVR identifies the resource in the API server's preferred version.
	GVR schema.GroupVersionResource
	// Kind is the kind of its objects, in the same version.
	Kind schema.GroupVersionKind
	// Namespaced is false for a cluster-scoped resource.
	Namespaced bool
	// Controls reports whether objects of other resources of the ring may follow objects of this one. If there is a
	// controlled resource, this is true for every main resource; if there are several, it is also true for every
	// controlled one.
	Controls bool
	// Key determines the keys of its objects, if it is a main resource of the ring.
	Key key.Rule
	// Selector selects the objects that the ring shards by their labels, if it is a main resource of the ring; empty for
	// all. See [Resource.Selects].
	Selector string

	// lacks names the verbs that sharding needs and that are not served.
	lacks string
	// aliases are its singular, its kind in lower case, and its short names, separated by commas; empty in a ring.
	aliases string
}

// Missing is a resource of a ring that is not served, or not known to be served.
type Missing struct {
	schema.GroupResource
	// Err is the reason: a [NotServedError] (for which [meta.IsNoMatchError] is true) if the API server did not serve the
	// resource at the last query; otherwise, why this is not known.
	Err error

	gone bool
}

// Gone reports whether the API server certainly does not serve the resource in any version: a look at its complete
// group succeeded after the resource was first missed. The resource then has no objects. It is also true for a resource
// that lacks verbs: nothing can find or change labels of its objects. While Gone is false, the resource may have
// objects.
func (m Missing) Gone() bool { return m.gone }

// Absent reports whether the API server did not serve the resource at the last query. This may be a brief moment in the
// life of a CustomResourceDefinition. A resource that is gone is also absent.
func (m Missing) Absent() bool { return meta.IsNoMatchError(m.Err) }

func alphabetically(a, b Missing) int { return cmp.Compare(a.String(), b.String()) }

// Set contains the resources of a ring. The zero value has none.
type Set struct {
	main       []Resource
	controlled []Resource
	missing    []Missing
	byResource map[schema.GroupResource]entry
	byKind     map[schema.GroupKind]entry
	// selector is that of all main resources.
	selector string
}

type entry struct {
	resource Resource
	role     Role
}

// Recorded returns the resources whose objects may carry labels of a ring, according to its status; none if the status
// is nil.
func Recorded(status *v1alpha1.AssignmentStatus) sets.Set[schema.GroupResource] {
	all := sets.New[schema.GroupResource]()
	if status == nil {
		return all
	}

	for i := range status.Resources {
		name(all, status.Resources[i].Group, status.Resources[i].Resource, status.Resources[i].ControlledResources)
	}

	return all
}

// Named returns all resources that a list names, main and controlled ones.
func Named(list []v1alpha1.RingResource) sets.Set[schema.GroupResource] {
	all := sets.New[schema.GroupResource]()
	for i := range list {
		name(all, list[i].Group, list[i].Resource, list[i].ControlledResources)
	}

	return all
}

func name(all sets.Set[schema.GroupResource], group, resource string, controlled []v1alpha1.ControlledResource) {
	all.Insert(schema.GroupResource{Group: group, Resource: resource})

	for _, c := range controlled {
		all.Insert(schema.GroupResource{Group: c.Group, Resource: c.Resource})
	}
}

// Owner is an object that controls another one.
type Owner struct {
	// Resource is the owner's resource, one of the ring's.
	Resource Resource
	// NamespacedName identifies the owner; the namespace is empty if its resource is cluster-scoped.
	types.NamespacedName
	// UID is the UID of the owner, from the reference.
	UID types.UID
}

// lookup finds a resource. If it fails, it returns the reason, and whether the resource is certainly gone.
type lookup func(schema.GroupResource) (r Resource, gone bool, err error)

// newSet looks up every resource of a ring. It does not fail as a whole: what cannot be found is in [Set.Missing], and
// the rest works. A resource that is listed as main and as controlled counts as main.
func newSet(spec v1alpha1.ClusterRingSpec, find lookup) *Set {
	s := &Set{
		byResource: map[schema.GroupResource]entry{}, byKind: map[schema.GroupKind]entry{}, selector: selectorOf(spec),
	}

	controlled := 0
	for _, r := range spec.Resources {
		controlled += len(r.ControlledResources)
	}

	for _, r := range spec.Resources {
		gr := schema.GroupResource{Group: r.Group, Resource: r.Resource}
		s.add(find, gr, entry{Resource{Controls: controlled > 0, Key: key.RuleOf(r.Key), Selector: s.selector}, Main})
	}

	for _, r := range spec.Resources {
		for _, c := range r.ControlledResources {
			gr := schema.GroupResource{Group: c.Group, Resource: c.Resource}
			s.add(find, gr, entry{Resource{Controls: controlled > 1}, Controlled})
		}
	}

	return s
}

// add adds a resource as the ring lists it, with what the API server says about it.
func (s *Set) add(find lookup, gr schema.GroupResource, e entry) {
	if _, known := s.byResource[gr]; known {
		return
	}

	res, gone, err := find(gr)
	if err != nil {
		s.missing = append(s.missing, Missing{GroupResource: gr, Err: err, gone: gone})
		return
	}

	res.Controls, res.Key, res.Selector, res.aliases = e.resource.Controls, e.resource.Key, e.resource.Selector, ""
	e.resource = res
	s.byResource[gr] = e

	if gk := res.Kind.GroupKind(); s.byKind[gk].role == "" {
		s.byKind[gk] = e
	}

	if e.role == Main {
		s.main = append(s.main, res)
	} else {
		s.controlled = append(s.controlled, res)
	}
}

// GroupResource returns the resource without its version.
func (r Resource) GroupResource() schema.GroupResource { return r.GVR.GroupResource() }

// IsNamespaces reports whether the resource is that of namespaces: the key of a Namespace by its name is the key of
// everything in it.
func (r Resource) IsNamespaces() bool {
	return r.Kind.GroupKind() == schema.GroupKind{Kind: "Namespace"}
}

// Main returns the served main resources, in the order of the ring. The result is shared: do not change it.
func (s *Set) Main() []Resource { return s.main }

// Controlled returns the served controlled resources, in the order of the ring. The result is shared: do not change it.
func (s *Set) Controlled() []Resource { return s.controlled }

// Missing returns the resources that could not be resolved. The result is shared: do not change it.
func (s *Set) Missing() []Missing { return s.missing }

// Message describes in one sentence that these resources are missing, and why, in a stable order; empty if there are
// none.
func Message(missing []Missing) string {
	var absent, lacking, unknown, parts []string

	for _, m := range slices.SortedFunc(slices.Values(missing), alphabetically) {
		e, ok := errors.AsType[*NotServedError](m.Err)

		switch {
		case ok && e.Lacks != "":
			lacking = append(lacking, e.Error())
		case ok && e.Suggestion != "":
			absent = append(absent, m.String()+" (did you mean "+e.Suggestion+"?)")
		case m.Absent():
			absent = append(absent, m.String())
		default:
			unknown = append(unknown, m.String()+" ("+m.Err.Error()+")")
		}
	}

	if len(absent) > 0 {
		parts = append(parts,
			"the API server does not serve "+strings.Join(absent, ", ")+"; is the CustomResourceDefinition installed?")
	}

	if len(lacking) > 0 {
		parts = append(parts, strings.Join(lacking, ", ")+"; remove it from the ring")
	}

	if len(unknown) > 0 {
		parts = append(parts, "it is not known whether the API server serves "+strings.Join(unknown, ", "))
	}

	return strings.Join(parts, " ")
}

// Keyed returns the served main resources with a key other than the name, in the order of the ring.
func (s *Set) Keyed() []Resource {
	return slices.DeleteFunc(slices.Clone(s.main), func(r Resource) bool { return r.Key.ByName() })
}

// KeysRecorded reports whether the status of a ring records the keys of all served main resources that it records. If
// not, objects are about to move. A nil status records nothing.
func (s *Set) KeysRecorded(status *v1alpha1.AssignmentStatus) bool {
	if status == nil {
		return true
	}

	for i := range status.Resources {
		recorded := &status.Resources[i]

		e, ok := s.byResource[schema.GroupResource{Group: recorded.Group, Resource: recorded.Resource}]
		if ok && e.role == Main && e.resource.Key != key.RuleOf(recorded.Key) {
			return false
		}
	}

	return true
}

// Find returns a resource of the ring and its role; ok is false if the ring does not have it or it is not served.
func (s *Set) Find(gr schema.GroupResource) (r Resource, role Role, ok bool) {
	e, ok := s.byResource[gr]

	return e.resource, e.role, ok
}

// Equal reports whether two sets contain the same resources, in the same versions, roles, and scopes, with the same
// keys, and miss the same ones, for any reason.
func (s *Set) Equal(o *Set) bool {
	missing := func(s *Set) []Missing { return slices.SortedFunc(slices.Values(s.missing), alphabetically) }

	return slices.Equal(s.main, o.main) && slices.Equal(s.controlled, o.controlled) &&
		slices.EqualFunc(missing(s), missing(o), func(a, b Missing) bool { return a.GroupResource == b.GroupResource })
}

// nothing selects no object. It stands for a selector that is not valid: services that act for a ring refuse it.
const nothing = "!invalid,invalid"

// selectorOf returns the object selector of a ring: equal texts for selectors with the same requirements.
func selectorOf(spec v1alpha1.ClusterRingSpec) string {
	requirements, err := spec.ObjectRequirements()
	if err != nil {
		return nothing
	}

	texts := make([]string, len(requirements))
	for i := range requirements {
		texts[i] = requirements[i].String()
	}

	return strings.Join(slices.Compact(texts), ",")
}

// Selector returns the selector of the main objects that the ring shards; empty for all objects.
func (s *Set) Selector() string { return s.selector }

// Selects reports whether the ring shards a main object of the resource with these labels, as far as the labels decide.
func (r Resource) Selects(has map[string]string) bool {
	if r.Selector == "" {
		return true
	}

	selector, err := labels.Parse(r.Selector)

	return err == nil && selector.Matches(labels.Set(has))
}

// Unselecting returns selectors of which at least one selects each object that the selector of the ring does not
// select, and which select no other object: one for each requirement. It returns none if the ring shards all objects.
func (r Resource) Unselecting() []string {
	requirements, err := labels.ParseToRequirements(r.Selector)
	if r.Selector == "" || err != nil {
		return nil
	}

	all := make([]string, 0, len(requirements))

	for _, is := range requirements {
		not, err := labels.NewRequirement(is.Key(), opposites[is.Operator()], is.ValuesUnsorted())
		if err == nil { // its parts are valid
			all = append(all, not.String())
		}
	}

	return all
}

// opposites are those of the operators that selectors of the API become.
var opposites = map[selection.Operator]selection.Operator{
	selection.In: selection.NotIn, selection.Equals: selection.NotIn, selection.NotIn: selection.In,
	selection.Exists: selection.DoesNotExist, selection.DoesNotExist: selection.Exists,
}

// Ancestors returns what the keys of objects depend on that follow others: the controllers of objects that stand
// between a main object and the objects that follow it, and labels of the main object. It is safe for concurrent use.
type Ancestors interface {
	// ControllerOf returns the owner reference of an object's controller; nil if it has none. found is false if no object
	// with that name and UID exists (any more).
	ControllerOf(ctx context.Context, of Owner) (controller *metav1.OwnerReference, found bool, err error)
	// LabelsOf returns what the labels of a main object decide, whose key is a label, or whose resource has a selector.
	// found is false if no object with that name and UID exists (any more).
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
	// Owner is the main object that a controlled object follows; nil for a main object. If an object between them no
	// longer exists, Owner is that object, because what it followed is not known: such an owner does not exist.
	Owner *Owner
	// Between are the objects between the object and its owner, the nearest first. They exist.
	Between []Owner
	// Keyless reports whether the object that determines the key lacks what its resource's rule asks for. The key is then
	// that of its name.
	Keyless bool
	// Labels are labels of the owner if its key is a label, or its resource has a selector, as [Ancestors.LabelsOf]
	// returned them; nil otherwise, and if the owner does not exist.
	Labels map[string]string
	// Unselected reports whether the owner exists and the selector of its resource does not select it. Orphaned reports
	// whether that is not known in a ring with a selector, because the owner does not exist.
	Unselected, Orphaned bool
}

// In returns the namespace of the main object, given that of the object itself. Where a shard watches it decides which
// shards may have both.
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

// KinOf returns what an object follows. ok is false if the object is not part of the ring: it is a controlled object
// without a controller, or its controller, or one further up, is of none of the ring's kinds, or too many objects are
// in between; see [contract.MaxDepth]. An error is that of the ancestors, which are only asked about objects in
// between, and about main objects whose labels decide something; see [Resource.NeedsLabels]. Whether the ring selects a
// main object is not part of the answer for that object itself.
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

	kind := owner.Resource.Kind
	byName := key.Key{Group: kind.Group, Kind: kind.Kind, Namespace: owner.Namespace, Name: owner.Name}
	k, found := owner.Resource.Key.OfParts(byName, kin.Labels[owner.Resource.Key.Label])
	kin.Key, kin.Keyless = k, !found

	return kin, true, nil
}

// NeedsLabels reports whether labels of an object of the resource decide about objects that follow it: the resource is
// a main resource whose key is a label, or which has a selector.
func (r Resource) NeedsLabels() bool { return r.Key.Label != "" || r.Selector != "" }

// ControllerOf returns the object that controls another one, and the role of its resource. ok is false if there is none
// among the ring's kinds.
func (s *Set) ControllerOf(obj metav1.Object) (owner *Owner, role Role, ok bool) {
	return s.controller(obj.GetNamespace(), metav1.GetControllerOfNoCopy(obj))
}

// controller returns the object that a reference from the namespace names. A cluster-scoped object cannot have an owner
// in a namespace.
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
