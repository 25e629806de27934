package rings

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/ringquery/metadata"
)

// Resources caches the resources of each ring. It is safe for concurrent use; create it with [NewResources].
type Resources struct {
	known *resources.Resolver

	mu    sync.Mutex
	rings map[string]resolved
}

// resolved holds the resources of one ring at a revision of the resolver.
type resolved struct {
	uid        types.UID
	generation int64
	revision   int64
	set        *resources.Set
}

// NewResources returns a cache for the resolver.
func NewResources(known *resources.Resolver) *Resources {
	return &Resources{known: known, rings: map[string]resolved{}}
}

// Of returns the resources of the ring. It sends no requests.
func (r *Resources) Of(ring *v1alpha1.ClusterRing) *resources.Set {
	r.mu.Lock()
	defer r.mu.Unlock()

	revision := r.known.Revision() // before Resolve: if the resolver changes in between, the next call resolves again
	if k := r.rings[ring.Name]; k.set != nil && k.uid == ring.UID && k.generation == ring.Generation && k.revision == revision {
		return k.set
	}

	set := r.known.Resolve(ring.Spec)
	r.rings[ring.Name] = resolved{uid: ring.UID, generation: ring.Generation, revision: revision, set: set}

	return set
}

// Keep evicts all other rings.
func (r *Resources) Keep(rings []*v1alpha1.ClusterRing) {
	r.mu.Lock()
	defer r.mu.Unlock()

	if len(r.rings) <= len(rings) {
		return
	}

	kept := make(map[string]resolved, len(rings))
	for _, ring := range rings {
		if known, ok := r.rings[ring.Name]; ok {
			kept[ring.Name] = known
		}
	}

	r.rings = kept
}

// Find returns the resource of the reference, whether or not a ring lists it. It sends no requests. It fails with metadata.ErrNotServed,
// or with metadata.ErrUnavailable if it is not known whether the resource is served.
func (r *Resources) Find(ref Reference) (resources.Resource, error) {
	find := func() (resources.Resource, error) { return r.known.Find(ref.groupResource()) }
	if ref.Kind != "" {
		find = func() (resources.Resource, error) { return r.known.OfKind(ref.groupKind()) }
	}

	found, err := find()
	if err != nil {
		return resources.Resource{}, unserved(ref, err)
	}

	return found, nil
}

func unserved(ref Reference, err error) error {
	absent, ok := errors.AsType[*resources.NotServedError](err)

	switch {
	case !ok:
		return fmt.Errorf("%w: find %s: %w", metadata.ErrUnavailable, ref.TypeName(), err)
	case absent.Suggestion != "":
		return fmt.Errorf("%w: the API server does not serve %s; did you mean %s?", metadata.ErrNotServed, ref.TypeName(), absent.Suggestion)
	default:
		return fmt.Errorf("%w: the API server does not serve %s", metadata.ErrNotServed, ref.TypeName())
	}
}

// Remembered returns the resources that the ring lists and those that its status still contains. Nil: the status contains none.
func (r *Resources) Remembered(ring Ring) *resources.Set {
	st := ring.Status.Assignment
	if st == nil || len(st.Resources) == 0 {
		return nil
	}

	all := slices.Clone(ring.Spec.Resources)
	for _, a := range st.Resources {
		all = append(all, v1alpha1.RingResource(a))
	}

	return r.known.Resolve(v1alpha1.ClusterRingSpec{Resources: all})
}
