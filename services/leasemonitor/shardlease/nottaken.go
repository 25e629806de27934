package shardlease

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/clusterring/clusterring/services/internal/lease"
)

// reportAfter is how long the work on a Lease must have failed until people are reported: what passes by itself is no
// news.
const reportAfter = time.Second

// NotTaken tracks the Leases that are due to be taken over but cannot be: the API server refuses the write, or the read
// before it. Their shards hold them, and therefore keep their objects, although no shard works on these objects. The
// zero value contains none, and NotTaken is safe for concurrent use, but for one Lease.
type NotTaken struct {
	failures sync.Map // failure, by the name of the Lease
	tell     atomic.Pointer[func(ring string)]
}

// failure is why the work on a Lease fails.
type failure struct {
	ring string
	// since is when it began to fail, whatever was to be done.
	since time.Time
	// due reports that the Lease is to be taken over, and silent since when its shard has not renewed it.
	due    bool
	silent time.Time
	// reported is set when people have to know, and what the error that they read.
	reported bool
	what     string
}

// Notify sets the function that is called with the name of each ring for which [NotTaken.Of] may return something else,
// also if it does not. It is called on the goroutine that works on the Lease, and must not block.
func (n *NotTaken) Notify(tell func(ring string)) { n.tell.Store(&tell) }

// Of returns a message about each Lease of the ring that cannot be taken over, in their order. A message stays the same
// as long as the error does.
func (n *NotTaken) Of(ring string) []string {
	var messages []string

	n.failures.Range(func(id, value any) bool {
		if f, _ := value.(failure); f.reported && f.ring == ring {
			messages = append(messages, fmt.Sprintf("shard %s has not renewed its Lease since %s and its objects wait, "+
				"because the Lease cannot be taken over: %s", id, f.silent.UTC().Format(time.RFC3339), f.what))
		}

		return true
	})

	slices.Sort(messages) // by namespace and name

	return messages
}

// failed notes that work on the Lease fails, now. Since and reported are filled in.
func (n *NotTaken) failed(id types.NamespacedName, f failure, now time.Time) {
	known, _ := n.failures.Load(id)
	before, ok := known.(failure)

	f.since = now
	if ok {
		f.since = before.since
	}

	if before.due {
		f.silent = before.silent // what was reported does not change by a moment
	}

	f.reported = f.due && now.Sub(f.since) >= reportAfter
	n.failures.Store(id, f)

	if before.reported || f.reported {
		n.changed(before.ring, f.ring)
	}
}

// forget notes that nothing fails about the Lease.
func (n *NotTaken) forget(id types.NamespacedName) {
	if known, failed := n.failures.LoadAndDelete(id); failed {
		n.changed(known.(failure).ring) //nolint:forcetypeassert // it contains nothing else
	}
}

// changed notifies of the rings whose people may read something else now.
func (n *NotTaken) changed(rings ...string) {
	tell := n.tell.Load()
	if tell == nil {
		return
	}

	for _, ring := range slices.Compact(rings) {
		if ring != "" {
			(*tell)(ring)
		}
	}
}

// note tells NotTaken how the work on a Lease ended.
func (r *Reconciler) note(judged *judgement, err error) {
	if err == nil {
		r.NotTaken.forget(judged.id())
		return
	}

	r.NotTaken.failed(judged.id(), failure{
		ring: judged.ring(), silent: judged.silent, what: err.Error(),
		due: judged.Action == lease.Acquire && judged.State.Available(), // the shard is given up
	}, r.Clock.Now())
}
