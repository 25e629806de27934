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

// Resources remembers what the resources of each ring are. It is safe for concurrent use; create it with [NewResources].
type Resources struct {
	known *resources.Resolver

	mu    sync.Mutex
	rings map[string]resolved
}

// resolved is what the resources of one ring were when the resolver had some revision.
type resolved struct {
	uid        types.UID
	generation int64
	revision   int64
	set        *resources.Set
}

// NewResources returns a memory of what the resolver answers.
func NewResources(known *resources.Resolver) *Resources {
	return &Resources{known: known, rings: map[string]resolved{}}
}

// Of returns what the ring's resources are. It sends no request.
func (r *Resources) Of(ring *v1alpha1.ClusterRing) *resources.Set {
	r.mu.Lock()
	defer r.mu.Unlock()

	revision := r.known.Revision() // before it is asked: what comes in between may be asked again
	if k := r.rings[ring.Name]; k.set != nil && k.uid == ring.UID && k.generation == ring.Generation && k.revision == revision {
		return k.set
	}

	set := r.known.Resolve(ring.Spec)
	r.rings[ring.Name] = resolved{uid: ring.UID, generation: ring.Generation, revision: revision, set: set}

	return set
}

// Keep forgets all rings but these.
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

// Find returns the resource that the reference names, whether or not a ring lists it. It sends no request. It fails with
// metadata.ErrNotServed, or with metadata.ErrUnavailable if that is not known.
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

// Remembered returns what the ring lists, and what its status says that it listed before; nil if that is nothing more.
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
