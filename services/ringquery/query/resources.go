package query

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/resources"
)

// retryMissing is how long a resource that the API server does not serve is taken to stay away. To ask takes a request, and
// questions must not turn into as many requests.
const retryMissing = 2 * time.Second

// Resources remembers what the resources of each ring are. It is safe for concurrent use; create it with [NewResources].
type Resources struct {
	mapper meta.RESTMapper
	clock  clock.PassiveClock

	mu    sync.Mutex
	rings map[string]*resolved
}

// resolved is what the resources of one ring were at some time.
type resolved struct {
	mu         sync.Mutex
	uid        types.UID
	generation int64
	set        *resources.Set
	at         time.Time
}

// NewResources returns a memory that asks the mapper.
func NewResources(mapper meta.RESTMapper, clk clock.PassiveClock) *Resources {
	return &Resources{mapper: mapper, clock: clk, rings: map[string]*resolved{}}
}

// Of returns what the ring's resources are. It asks the mapper if the ring has changed, or if some resource was missing a
// while ago.
func (r *Resources) Of(ring *v1alpha1.ClusterRing) *resources.Set {
	r.mu.Lock()
	known, ok := r.rings[ring.Name]
	if !ok {
		known = &resolved{}
		r.rings[ring.Name] = known
	}
	r.mu.Unlock()

	known.mu.Lock()
	defer known.mu.Unlock()

	if !known.holds(ring, r.clock) {
		known.set = resources.Resolve(r.mapper, ring.Spec)
		known.uid, known.generation, known.at = ring.UID, ring.Generation, r.clock.Now()
	}

	return known.set
}

// Keep forgets all rings but these.
func (r *Resources) Keep(rings []*v1alpha1.ClusterRing) {
	r.mu.Lock()
	defer r.mu.Unlock()

	if len(r.rings) <= len(rings) {
		return
	}

	kept := make(map[string]*resolved, len(rings))
	for _, ring := range rings {
		if known, ok := r.rings[ring.Name]; ok {
			kept[ring.Name] = known
		}
	}

	r.rings = kept
}

func (k *resolved) holds(ring *v1alpha1.ClusterRing, clk clock.PassiveClock) bool {
	return k.set != nil && k.uid == ring.UID && k.generation == ring.Generation &&
		(len(k.set.Missing()) == 0 || clk.Since(k.at) < retryMissing)
}
