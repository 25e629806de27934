package engine

import (
	"maps"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/clusterring/clusterring/services/rebalancer/feed"
)

// manyLost is the number of lost shards that are remembered.
const manyLost = 1000

// history distinguishes news of a watch from repetitions. When a shard is lost, the watch for objects without an available
// shard continues with another selector from its current position, which may be a minute old. It therefore delivers objects
// that were at that shard in the meantime, wherever they are now. The objects that are still there are listed. All other
// objects of that time are useless, and each would cost a request.
type history struct {
	// reached are resource versions that the API server has certainly reached.
	reached map[schema.GroupVersionResource]string
	// until contains, for each lost shard, the versions that were reached before its objects were listed.
	until map[string]map[schema.GroupVersionResource]string
}

func newHistory() history {
	return history{
		reached: map[schema.GroupVersionResource]string{},
		until:   map[string]map[schema.GroupVersionResource]string{},
	}
}

// note records a version that was reached.
func (h *history) note(gvr schema.GroupVersionResource, version string) {
	if was, ok := h.reached[gvr]; !ok || feed.Older(was, version) {
		h.reached[gvr] = version
	}
}

// lose records shards whose objects are about to be listed.
func (h *history) lose(shards sets.Set[string]) {
	if len(h.until)+shards.Len() > manyLost {
		clear(h.until) // the watches' repetitions are then processed
	}

	reached := maps.Clone(h.reached)
	for name := range shards {
		h.until[name] = reached
	}
}

// past reports whether the object is not newer than the list of the objects of its lost shard.
func (h *history) past(o feed.Object) bool {
	until, ok := h.until[o.Shard][o.GVR]

	return ok && (o.ResourceVersion == until || feed.Older(o.ResourceVersion, until))
}

// reached records a version that the API server has reached.
func (s *state) reached(gvr schema.GroupVersionResource, version string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.history.note(gvr, version)
}

// anew clears the history: a watch starts from scratch, and after a restore of its storage, the API server may use other
// versions.
func (s *state) anew() {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.history = newHistory()
}

// past reports whether a watch delivers an object in a past state, so that a list delivers the object.
func (s *state) past(o feed.Object) bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.target != nil && !s.target.View.Available(o.Shard) && s.history.past(o)
}
