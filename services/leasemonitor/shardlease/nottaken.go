package shardlease

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/services/internal/lease"
)

// reportAfter is how long the work on a Lease must have failed until people are reported: what passes by itself is no news.
const reportAfter = time.Second

// NotTaken tracks the Leases that are due to be taken over but cannot be: the API server refuses the write, or the read before
// it. Their shards hold them, and therefore keep their objects, although no shard works on these objects. The zero value contains
// none, and NotTaken is safe for concurrent use.
type NotTaken struct {
	mu          sync.Mutex
	failures    map[types.NamespacedName]failure
	subscribers []func(ring string)
}

// failure is why the work on a Lease fails.
type failure struct {
	ring string
	// since is when it began to fail, whatever was to be done.
	since time.Time
	// due says that the Lease is to be taken over, and silent since when its shard has not renewed it.
	due    bool
	silent time.Time
	// reported says that people are to know, and what the error that they read.
	reported bool
	what     string
}

// Subscribe registers a function that is called with the name of each ring for which [NotTaken.Of] may return something else. It
// is called on the goroutine that works on the Lease, and must not block.
func (n *NotTaken) Subscribe(tell func(ring string)) {
	n.mu.Lock()
	defer n.mu.Unlock()

	n.subscribers = append(n.subscribers, tell)
}

// Of returns a message about each Lease of the ring that cannot be taken over, ordered by namespace and name of the Leases. A
// message stays the same as long as the error does.
func (n *NotTaken) Of(ring string) []string {
	n.mu.Lock()
	defer n.mu.Unlock()

	ids := slices.SortedFunc(maps.Keys(n.failures), func(a, b types.NamespacedName) int {
		return slices.Compare([]string{a.Namespace, a.Name}, []string{b.Namespace, b.Name})
	})

	var messages []string

	for _, id := range ids {
		if f := n.failures[id]; f.reported && f.ring == ring {
			messages = append(messages, fmt.Sprintf("shard %s has not renewed its Lease since %s and its objects wait, because the Lease cannot be taken over: %s",
				id, f.silent.UTC().Format(time.RFC3339), f.what))
		}
	}

	return messages
}

// failed notes that work on the Lease fails, now. Since and reported are filled in.
func (n *NotTaken) failed(id types.NamespacedName, f failure, now time.Time) {
	n.set(id, func(before failure, ok bool) (failure, bool) {
		f.since = now
		if ok {
			f.since = before.since
		}

		if before.due {
			f.silent = before.silent // what was reported does not change by a moment
		}

		f.reported = f.due && now.Sub(f.since) >= reportAfter

		return f, true
	})
}

// forget notes that nothing fails about the Lease.
func (n *NotTaken) forget(id types.NamespacedName) {
	n.set(id, func(failure, bool) (failure, bool) { return failure{}, false })
}

// set replaces what is known of a Lease, and calls the subscribers if what people read changes.
func (n *NotTaken) set(id types.NamespacedName, next func(before failure, ok bool) (after failure, keep bool)) {
	n.mu.Lock()
	before, ok := n.failures[id]

	after, keep := next(before, ok)
	if !keep {
		delete(n.failures, id)
	} else {
		if n.failures == nil {
			n.failures = map[types.NamespacedName]failure{}
		}

		n.failures[id] = after
	}

	subscribers := n.subscribers
	n.mu.Unlock()

	for _, ring := range changed(before, after) {
		for _, tell := range subscribers {
			tell(ring)
		}
	}
}

// changed names the rings whose people read something else after the change.
func changed(before, after failure) (rings []string) {
	if before.reported == after.reported && before.ring == after.ring && before.what == after.what {
		return nil
	}

	if before.reported {
		rings = append(rings, before.ring)
	}

	if after.reported && !slices.Contains(rings, after.ring) {
		rings = append(rings, after.ring)
	}

	return rings
}

// note tells NotTaken how the work on a Lease ended.
func (r *Reconciler) note(judged *judgement, err error) {
	id := client.ObjectKeyFromObject(judged.lease)
	if err == nil {
		r.NotTaken.forget(id)
		return
	}

	now := r.Clock.Now()
	r.NotTaken.failed(id, failure{
		ring: judged.ring(), due: judged.failed(), silent: now.Add(-judged.seen.Age), what: err.Error(),
	}, now)
}

// failed reports whether the shard is given up: its Lease is to be taken from it.
func (j *judgement) failed() bool { return j.Action == lease.Acquire && j.State.Available() }
