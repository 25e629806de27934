package sweep

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/tools/faults/faultrun"
	"github.com/clusterring/clusterring/tools/lab/must"
	"github.com/clusterring/clusterring/tools/testkit/check"
	"github.com/clusterring/clusterring/tools/testkit/proxy"
)

const (
	// soon bounds waits for what follows at once.
	soon = 10 * time.Second
	// beyondHoldOff is how long work is held: a shard that has just joined begins to work after two seconds.
	beyondHoldOff = 3500 * time.Millisecond
)

// happens waits until something has happened, and at most so long.
func happens(ctx context.Context, within time.Duration, what *atomic.Bool) bool {
	return must.Attempt(func() {
		must.Until(ctx, within, func(context.Context) { must.Hold(what.Load(), "it has not happened") })
	}) == nil
}

// drainDuringWork holds the first drain until the second controller of the object's shard, and only that one, is at
// work on what the object controls; and holds that work for longer than the new shard would need to begin.
type drainDuringWork struct {
	mu          sync.Mutex
	name, shard string // of the object

	working, drained, over atomic.Bool
}

func (d *drainDuringWork) object() (name, shard string) {
	d.mu.Lock()
	defer d.mu.Unlock()

	return d.name, d.shard
}

// choose makes the Website the one whose drain is held, if there is none yet, and has its shard work.
func (d *drainDuringWork) choose(ctx context.Context, run *faultrun.Run, name string) {
	d.mu.Lock()

	chosen := d.name == ""
	if chosen {
		d.name = name
		for _, v := range run.Newest() {
			if v.Kind == check.Website && v.Name == name && !v.Deleted {
				d.shard = v.Shard
			}
		}
	}
	d.mu.Unlock()

	if chosen && must.Attempt(func() { run.ClearChecksum(ctx, name) }) == nil {
		happens(ctx, soon, &d.working) // During says if it did not
	}
}

func (d *drainDuringWork) prepare(ctx context.Context, run *faultrun.Run) {
	run.Member(faultrun.Rebalancer).Proxy.Hook(func(write proxy.Write) proxy.Action {
		if value := write.Labels()[contract.DrainLabel(faultrun.Ring)]; write.Resource != "websites" || value == nil {
			return proxy.Action{}
		}
		d.choose(ctx, run, write.Name)

		if name, _ := d.object(); name != write.Name {
			return proxy.Action{}
		}

		return proxy.Action{Applied: func(done proxy.Done) {
			if done.Status == http.StatusOK {
				d.drained.Store(true)
			}
		}}
	})

	for _, m := range run.Members(true) {
		m.Proxy.Hook(func(write proxy.Write) proxy.Action {
			name, shard := d.object()
			if write.Resource != "configmaps" || write.Name != name || m.Name != shard || d.working.Swap(true) {
				return proxy.Action{}
			}

			if happens(ctx, soon, &d.drained) && must.Attempt(func() { must.Pause(ctx, beyondHoldOff) }) == nil {
				d.over.Store(true)
			}

			return proxy.Action{}
		})
	}
}

// TestDrainDuringWork has a drain come in while a worker of another controller is inside the object: its shard must not
// give it up before that one is done.
func TestDrainDuringWork(t *testing.T) {
	s := theSuite(t)
	d := &drainDuringWork{}
	s.run(t, faultrun.Case{
		Name: "a drain comes in while the second controller works", Phases: []faultrun.Phase{faultrun.Join},
		Prepare: func(run *faultrun.Run) { d.prepare(t.Context(), run) },
		During: during{faultrun.Join: func(ctx context.Context, _ *faultrun.Run) {
			must.Hold(happens(ctx, 3*soon, &d.over), "the drain did not come in during work")
		}},
	})
}

// heldAcknowledgements lets each shard give up one Website, and holds it back from giving up any other.
type heldAcknowledgements struct {
	mu       sync.Mutex
	first    map[string]string // by shard, the Website that it has given up
	held     map[string]int    // by shard
	released atomic.Bool
}

func (h *heldAcknowledgements) prepare(ctx context.Context, run *faultrun.Run) {
	for _, m := range run.Members(true) {
		m.Proxy.Hook(func(write proxy.Write) proxy.Action {
			value, set := write.Labels()[contract.ShardLabel(faultrun.Ring)]
			if write.Resource != "websites" || !set || value != nil || !h.hold(m.Name, write.Name) {
				return proxy.Action{}
			}

			happens(ctx, 3*soon, &h.released) // During says if it was not

			return proxy.Action{}
		})
	}
}

// hold says whether the shard is held back from giving up the Website.
func (h *heldAcknowledgements) hold(shard, name string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()

	if first, known := h.first[shard]; !known || first == name {
		h.first[shard] = name
		return false
	}
	h.held[shard]++

	return true
}

// followed says whether what a Website controls has followed it away from its shard, while that shard has others to
// give up.
func (h *heldAcknowledgements) followed(newest []check.Version) bool {
	h.mu.Lock()
	defer h.mu.Unlock()

	return slices.ContainsFunc(newest, func(v check.Version) bool {
		for shard, name := range h.first {
			if h.held[shard] > 0 && v.Kind == check.ConfigMap && v.Name == name && !v.Deleted && v.Shard != "" &&
				v.Shard != shard {
				return true
			}
		}

		return false
	})
}

// TestChildrenFollowTheirOwner has shards give up one object after the other, so that the rebalancer looks at what all
// of them control while most of them are still where they were.
func TestChildrenFollowTheirOwner(t *testing.T) {
	s := theSuite(t)

	const more = 24 // of which the new shard gets two or three from each

	h := &heldAcknowledgements{first: map[string]string{}, held: map[string]int{}}
	s.run(t, faultrun.Case{
		Name: "children of objects that are given up and of those that are not yet", Phases: []faultrun.Phase{faultrun.Join},
		Prepare: func(run *faultrun.Run) { h.prepare(t.Context(), run) },
		After: during{faultrun.Begin: func(ctx context.Context, run *faultrun.Run) {
			for i := range more {
				run.Create(ctx, fmt.Sprintf("more-%d", i))
			}

			run.AwaitInPlace(ctx)
		}},
		During: during{faultrun.Join: func(ctx context.Context, run *faultrun.Run) {
			defer h.released.Store(true)

			run.Until(ctx, "what the first one controls has followed", func() bool { return h.followed(run.Newest()) })
			must.Pause(ctx, time.Second) // all that would move has done so by then
		}},
	})
}
