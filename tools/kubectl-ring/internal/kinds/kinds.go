// Package kinds parses the names of types as kubectl does: plural, singular, short name, or kind, with or without a
// version and group.
package kinds

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/failure"
)

// Type is a type of objects. Kind or Resource is set, but not both.
type Type struct {
	// Group is the API group. Empty: the core group.
	Group string
	// Kind in that group.
	Kind string
	// Resource is the plural name.
	Resource string
	// ClusterScoped is true if its objects are known to have no namespace.
	ClusterScoped bool
}

// Resolve returns the type with the written name. mapper is that of the cluster. Nil: there is no cluster, and the name
// is a plural name, or a kind if it begins with a capital letter, with its group after the first dot.
func Resolve(mapper meta.RESTMapper, written string) (Type, error) {
	if written == "" || strings.HasPrefix(written, ".") {
		return Type{}, failure.New("write it as in deployments.apps/web", "%q names no type", written)
	}

	if mapper == nil {
		name, group, _ := strings.Cut(written, ".")
		if first, _ := utf8.DecodeRuneInString(name); unicode.IsUpper(first) {
			return Type{Group: group, Kind: name}, nil
		}

		return Type{Group: group, Resource: name}, nil
	}

	mapping, err := mappingFor(mapper, written)
	if err != nil {
		return Type{}, err
	}

	return Type{
		Group: mapping.Resource.Group, Resource: mapping.Resource.Resource,
		ClusterScoped: mapping.Scope.Name() != meta.RESTScopeNameNamespace,
	}, nil
}

// mappingFor tries the name as a resource, with and without a version, and then as a kind.
func mappingFor(mapper meta.RESTMapper, written string) (*meta.RESTMapping, error) {
	versioned, resource := schema.ParseResourceArg(strings.ToLower(written))

	var tried []error

	if versioned != nil {
		kind, err := mapper.KindFor(*versioned)
		if err == nil {
			return mapping(mapper, kind)
		}

		tried = append(tried, err)
	}

	kind, err := mapper.KindFor(resource.WithVersion(""))
	if err == nil {
		return mapping(mapper, kind)
	}

	tried = append(tried, err)

	versionedKind, groupKind := schema.ParseKindArg(written)
	if versionedKind == nil {
		versionedKind = &schema.GroupVersionKind{Group: groupKind.Group, Kind: groupKind.Kind}
	}

	found, err := mapper.RESTMapping(versionedKind.GroupKind(), versionedKind.Version)
	if err == nil {
		return found, nil
	}

	found, err = mapper.RESTMapping(groupKind)
	if err == nil {
		return found, nil
	}

	for _, err := range append(tried, err) {
		if !meta.IsNoMatchError(err) {
			return nil, failure.New("check the kubeconfig, or name a server with --endpoint and the type as plural.group",
				"ask the cluster what %s is: %w", written, err)
		}
	}

	return nil, failure.New("see what there is: kubectl api-resources", "the cluster has no type %q", written)
}

func mapping(mapper meta.RESTMapper, kind schema.GroupVersionKind) (*meta.RESTMapping, error) {
	found, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return nil, fmt.Errorf("ask the cluster about %s: %w", kind, err)
	}

	return found, nil
}

// Reference returns the object with the name. It omits the namespace if the type is cluster-scoped.
func (t Type) Reference(namespace, name string) *pb.ObjectReference {
	if t.ClusterScoped {
		namespace = ""
	}

	object := &pb.ObjectReference{Group: t.Group, Namespace: namespace, Name: name}
	if t.Kind != "" {
		object.Type = &pb.ObjectReference_Kind{Kind: t.Kind}
	} else {
		object.Type = &pb.ObjectReference_Resource{Resource: t.Resource}
	}

	return object
}

// Owner returns the object with the name as an owner.
func (t Type) Owner(name string) *pb.OwnerReference {
	owner := &pb.OwnerReference{Group: t.Group, Name: name}
	if t.Kind != "" {
		owner.Type = &pb.OwnerReference_Kind{Kind: t.Kind}
	} else {
		owner.Type = &pb.OwnerReference_Resource{Resource: t.Resource}
	}

	return owner
}

// Object is the name of an object, as it was written.
type Object struct{ Type, Name string }

// Parse returns the objects in the arguments: TYPE/NAME, any number of times, or TYPE NAME...
func Parse(args []string) ([]Object, error) {
	if len(args) == 0 {
		return nil, failure.New("write TYPE/NAME, or TYPE NAME", "no object is named")
	}

	if !strings.Contains(args[0], "/") {
		if len(args) == 1 {
			return nil, failure.New(fmt.Sprintf("write %s/NAME, or %s NAME", args[0], args[0]), "%q names no object", args[0])
		}

		var objects []Object

		for _, name := range args[1:] {
			if strings.Contains(name, "/") {
				return nil, failure.New("write TYPE/NAME each time, or TYPE NAME...", "%q cannot follow %q", name, args[0])
			}

			objects = append(objects, Object{args[0], name})
		}

		return objects, nil
	}

	var objects []Object

	for _, arg := range args {
		object, err := ParseOne(arg)
		if err != nil {
			return nil, err
		}

		objects = append(objects, object)
	}

	return objects, nil
}

// ParseOne returns the object in TYPE/NAME.
func ParseOne(arg string) (Object, error) {
	kind, name, ok := strings.Cut(arg, "/")
	if !ok || kind == "" || name == "" || strings.Contains(name, "/") {
		return Object{}, failure.New("write it as in deployments.apps/web", "%q is not TYPE/NAME", arg)
	}

	return Object{kind, name}, nil
}
