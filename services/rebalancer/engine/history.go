package engine

import (
	"maps"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/clusterring/clusterring/services/rebalancer/objects"
)

// manyLost is how many lost shards are remembered.
const manyLost = 1000

// history tells what a watch has to tell from what it repeats. When a shard is lost, the watch for objects without an available shard goes
// on with another selector from where it is, which may be a minute ago. So it tells of objects that were at that shard in the meantime,
// wherever they are by now. Those that are still there are listed; nothing else of that time is of any use, and each would cost a look.
type history struct {
	// reached are resource versions that the API server has surely reached.
	reached map[schema.GroupVersionResource]string
	// until are, for shards that were lost, the versions that were reached before their objects were listed.
	until map[string]map[schema.GroupVersionResource]string
}

func newHistory() history {
	return history{
		reached: map[schema.GroupVersionResource]string{},
		until:   map[string]map[schema.GroupVersionResource]string{},
	}
}

// note takes note of a version that was reached.
func (h *history) note(gvr schema.GroupVersionResource, version string) {
	if was, ok := h.reached[gvr]; !ok || objects.Older(was, version) {
		h.reached[gvr] = version
	}
}

// lose takes note of shards whose objects are about to be listed.
func (h *history) lose(shards sets.Set[string]) {
	if len(h.until)+shards.Len() > manyLost {
		clear(h.until) // what is repeated is looked at
	}

	reached := maps.Clone(h.reached)
	for name := range shards {
		h.until[name] = reached
	}
}

// past reports whether an object is as it was before the list of the objects of its shard, which is lost.
func (h *history) past(o objects.Object) bool {
	until, ok := h.until[o.Shard][o.GVR]

	return ok && (o.ResourceVersion == until || objects.Older(o.ResourceVersion, until))
}

// reached takes note of a version that the API server has reached.
func (s *state) reached(gvr schema.GroupVersionResource, version string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.history.note(gvr, version)
}

// anew forgets the past: a watch begins anew, and its API server's versions may be others after a restore of its storage.
func (s *state) anew() {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.history = newHistory()
}

// past reports whether an object that a watch tells of is as it was in the past, so that a list tells of it.
func (s *state) past(o objects.Object) bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.target != nil && !s.target.View.Available(o.Shard) && s.history.past(o)
}
