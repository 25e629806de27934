package resources

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

// Resolve returns the resources of a ring in a world that never changes and that a mapper knows completely, as in a model or a
// test. A resource that the mapper does not match is gone. Services use a [Resolver].
func Resolve(mapper meta.RESTMapper, spec v1alpha1.ClusterRingSpec) *Set {
	return newSet(spec, func(gr schema.GroupResource) (Resource, bool, error) {
		r, err := byMapper(mapper, gr)

		return r, meta.IsNoMatchError(err), err
	})
}

func byMapper(mapper meta.RESTMapper, gr schema.GroupResource) (Resource, error) {
	kind, err := mapper.KindFor(gr.WithVersion(""))
	if err != nil {
		return Resource{}, fmt.Errorf("determine the kind of resource %s: %w", gr, err)
	}

	// A mapper may complete a prefix of a group or a singular name, but a ring means exactly what it specifies.
	mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return Resource{}, fmt.Errorf("determine how resource %s is served: %w", gr, err)
	}

	if got := mapping.Resource.GroupResource(); got != gr {
		return Resource{}, &NotServedError{GroupResource: gr, Suggestion: got.String()}
	}

	return Resource{
		GVR:        mapping.Resource,
		Kind:       mapping.GroupVersionKind,
		Namespaced: mapping.Scope.Name() == meta.RESTScopeNameNamespace,
	}, nil
}
