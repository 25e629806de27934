package rings

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/resources"
)

// Reference names an object by its kind or by its resource. The other field is empty.
type Reference struct {
	Group, Kind, Resource, Namespace, Name string
}

// String formats the object for people, such as "configmaps default/a".
func (r Reference) String() string {
	name := r.Name
	if r.Namespace != "" {
		name = r.Namespace + "/" + name
	}

	return r.TypeName() + " " + name
}

// TypeName returns the resource or the kind with its group, such as "deployments.apps".
func (r Reference) TypeName() string {
	if r.Kind != "" {
		return r.groupKind().String()
	}

	return r.groupResource().String()
}

func (r Reference) groupResource() schema.GroupResource {
	return schema.GroupResource{Group: r.Group, Resource: r.Resource}
}

func (r Reference) groupKind() schema.GroupKind {
	return schema.GroupKind{Group: r.Group, Kind: r.Kind}
}

// CheckNamespace returns an error unless the reference has a namespace exactly if the resource is namespaced.
func (r Reference) CheckNamespace(resource resources.Resource) error {
	switch {
	case resource.Namespaced && r.Namespace == "":
		return Invalid("object.namespace", "must be set: "+resource.GroupResource().String()+" have a namespace")
	case !resource.Namespaced && r.Namespace != "":
		return Invalid("object.namespace", "must be empty: "+resource.GroupResource().String()+" are cluster-scoped")
	default:
		return nil
	}
}

// Find returns the resource of the ring to which the reference belongs. It fails with [ErrNotAdded].
func (r Ring) Find(ref Reference) (resources.Resource, resources.Role, error) {
	if resource, role, ok := Lookup(r.Resources, ref); ok {
		return resource, role, nil
	}

	for _, m := range r.Resources.Missing() {
		if ref.Kind == "" && m.GroupResource == ref.groupResource() {
			return resources.Resource{}, "", fmt.Errorf("%w: ring %s lists %s, but the API server does not serve it (yet)",
				ErrNotAdded, r.Name, ref.TypeName())
		}
	}

	return resources.Resource{}, "", fmt.Errorf("%w: ring %s does not list %s; it lists %s", ErrNotAdded, r.Name, ref.TypeName(), r.Listed())
}

// Lookup returns the resource of the set to which the reference belongs.
func Lookup(set *resources.Set, ref Reference) (resources.Resource, resources.Role, bool) {
	if ref.Kind == "" {
		return set.Find(ref.groupResource())
	}

	for _, resource := range slices.Concat(set.Main(), set.Controlled()) {
		if resource.Kind.GroupKind() == ref.groupKind() {
			return set.Find(resource.GroupResource())
		}
	}

	return resources.Resource{}, "", false
}

// Listed names the resources of the ring.
func (r Ring) Listed() string {
	var names []string
	for _, main := range r.Spec.Resources {
		names = append(names, schema.GroupResource{Group: main.Group, Resource: main.Resource}.String())
		for _, c := range main.ControlledResources {
			names = append(names, schema.GroupResource{Group: c.Group, Resource: c.Resource}.String()+" (controlled)")
		}
	}

	return strings.Join(names, ", ")
}

// Coverage reports whether a ring shards objects in a namespace.
type Coverage = pb.NamespaceCoverage

// Short names of the values. The API documents them, but for NotCovered: it never has to name a ring that does not shard the objects.
const (
	NotCovered = pb.NamespaceCoverage_NAMESPACE_COVERAGE_UNSPECIFIED
	Covered    = pb.NamespaceCoverage_NAMESPACE_COVERAGE_COVERED
	Unknown    = pb.NamespaceCoverage_NAMESPACE_COVERAGE_UNKNOWN // it depends on labels of the namespace that have not been read
)

// Covers reports whether the ring covers the namespace (empty: cluster-scoped objects) with these labels. If they are nil, it reports what
// follows from the name of the namespace: the API server adds the name to every namespace as a label.
func (r Ring) Covers(namespace string, has map[string]string) Coverage {
	if namespace == "" {
		return Covered
	}

	selector, err := r.namespaces()
	if err != nil {
		return Unknown
	}

	unread := has == nil
	if unread {
		has = map[string]string{corev1.LabelMetadataName: namespace}
	}

	requirements, selectable := selector.Requirements()
	if !selectable {
		return NotCovered
	}

	coverage := Covered

	for _, requirement := range requirements {
		switch {
		case unread && requirement.Key() != corev1.LabelMetadataName:
			coverage = Unknown
		case !requirement.Matches(labels.Set(has)):
			return NotCovered
		}
	}

	return coverage
}

// CheckSelector returns an error that wraps [ErrNotAdded] if a selector of the ring is not valid.
func (r Ring) CheckSelector() error {
	if _, err := r.namespaces(); err != nil {
		return fmt.Errorf("%w: the namespaceSelector of ring %s cannot be used: %w", ErrNotAdded, r.Name, err)
	}

	if _, err := r.Spec.ObjectRequirements(); err != nil {
		return fmt.Errorf("%w: ring %s: %w", ErrNotAdded, r.Name, err)
	}

	return nil
}

// Selector returns the selector of the namespaces that the ring covers, in the form of kubectl's --selector. Empty: all namespaces. If the
// selector is not valid, it returns the error.
func (r Ring) Selector() string {
	selector, err := r.namespaces()
	if err != nil {
		return "invalid: " + err.Error()
	}

	return selector.String()
}

func (r Ring) namespaces() (labels.Selector, error) {
	return metav1.LabelSelectorAsSelector(r.Spec.EffectiveNamespaceSelector()) //nolint:wrapcheck // it says what is wrong
}
