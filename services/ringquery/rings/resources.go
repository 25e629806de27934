package rings

import (
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/lru"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/resources"
)

// maxResolved is the maximum number of rings whose resources are cached. The least recently used one is evicted first.
const maxResolved = 4096

// Resources caches the resources of each ring. It is safe for concurrent use; create it with [NewResources].
type Resources struct {
	known *resources.Resolver
	sets  *lru.Cache // of *resources.Set, by resolved
}

// resolved identifies the specification of a ring and a revision of the resolver.
type resolved struct {
	uid                  types.UID
	generation, revision int64
}

// NewResources returns a cache for the resolver.
func NewResources(known *resources.Resolver) *Resources {
	return &Resources{known: known, sets: lru.New(maxResolved)}
}

// Of returns the resources of the ring. It sends no requests.
func (r *Resources) Of(ring *v1alpha1.ClusterRing) *resources.Set {
	// The revision comes before Resolve: if the resolver changes in between, the next call resolves again.
	key := resolved{ring.UID, ring.Generation, r.known.Revision()}
	if set, ok := r.sets.Get(key); ok {
		return set.(*resources.Set) //nolint:forcetypeassert // there is nothing else
	}

	set := r.known.Resolve(ring.Spec)
	r.sets.Add(key, set)

	return set
}

// Find returns the resource of the reference, whether or not a ring lists it. It sends no requests. It fails with [ErrNotServed], or with
// [ErrUnavailable] if it is not known whether the resource is served.
func (r *Resources) Find(ref Reference) (found resources.Resource, err error) {
	if ref.Kind != "" {
		found, err = r.known.OfKind(ref.groupKind())
	} else {
		found, err = r.known.Find(ref.groupResource())
	}

	absent, ok := errors.AsType[*resources.NotServedError](err)

	switch {
	case err == nil:
		return found, nil
	case !ok:
		err = fmt.Errorf("%w: find %s: %w", ErrUnavailable, ref.TypeName(), err)
	case absent.Suggestion != "":
		err = fmt.Errorf("%w: the API server does not serve %s; did you mean %s?", ErrNotServed, ref.TypeName(), absent.Suggestion)
	default:
		err = fmt.Errorf("%w: the API server does not serve %s", ErrNotServed, ref.TypeName())
	}

	return resources.Resource{}, err
}

// Remembered returns the resources that the ring lists and those that its status still contains.
func (r *Resources) Remembered(ring Ring) *resources.Set {
	st := ring.Status.Assignment
	if st == nil || len(st.Resources) == 0 {
		return ring.Resources
	}

	all := slices.Clone(ring.Spec.Resources)
	for _, a := range st.Resources {
		all = append(all, v1alpha1.RingResource{
			Group: a.Group, Resource: a.Resource, ControlledResources: a.ControlledResources, Key: a.Key,
		})
	}

	return r.known.Resolve(v1alpha1.ClusterRingSpec{Resources: all})
}
