package rings

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

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

// Find returns the resource of the ring to which the reference belongs. It fails with [ErrNotSharded].
func (r Ring) Find(ref Reference) (resources.Resource, resources.Role, error) {
	if resource, role, ok := Lookup(r.Resources, ref); ok {
		return resource, role, nil
	}

	for _, m := range r.Resources.Missing() {
		if ref.Kind == "" && m.GroupResource == ref.groupResource() {
			return resources.Resource{}, "", fmt.Errorf("%w: ring %s lists %s, but the API server does not serve it (yet)",
				ErrNotSharded, r.Name, ref.TypeName())
		}
	}

	return resources.Resource{}, "", fmt.Errorf("%w: ring %s does not list %s; it lists %s", ErrNotSharded, r.Name, ref.TypeName(), r.Listed())
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
