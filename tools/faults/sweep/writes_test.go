package sweep

import (
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/tools/faults/proxy"
	"github.com/clusterring/clusterring/tools/faults/stage"
)

// enough is how long all tests may have taken when the sweep, the last of them, begins to leave out what is not the first
// write of its kind, so that all ends within a quarter of an hour on a slow machine, too.
const enough = 12 * time.Minute

// count plays the scenario without a fault and returns what is written in it.
func (s *suite) count(t *testing.T) *counter {
	t.Helper()
	var c counter
	result := s.run(t, 1, 1, stage.Case{Name: "no fault, writes are counted", Prepare: func(w *stage.World) {
		for _, m := range append(w.Members(false), w.Members(true)...) {
			m.Proxy.Hook(func(write proxy.Write) proxy.Action {
				c.next(classify(w, m, write))
				return proxy.Action{}
			})
		}
	}})
	require.True(t, result.OK(), "no fault was injected")
	return &c
}

// TestKill kills each service, and the shards, before and after each write. Each run kills at one write.
func TestKill(t *testing.T) {
	s := theSuite(t)
	counted := s.count(t)
	every := os.Getenv(variable) == "all"
	firsts, more := points(counted, every)
	say("%d kinds of writes; tried are the first of each kind and %d more, each before and after", len(firsts), len(more))
	for _, c := range counted.classes() {
		say("%4d × %s", counted.counts[c], c)
	}

	var all []killing
	for _, p := range slices.Concat(firsts, more) {
		all = append(all, killing{p, false}, killing{p, true})
	}
	var missed []string
	left := 0
	for i, k := range all {
		if i >= 2*len(firsts) && !every && time.Since(s.began) > enough {
			left++
			continue
		}
		if !s.kill(t, i+1, len(all), k) {
			missed = append(missed, k.String())
		}
	}
	if left > 0 {
		say("left out for want of time: %d runs, none of them at the first write of its kind", left)
	}
	say("writes that did not happen in their run, for what is written differs a little each time: %d of %d\n  %s",
		len(missed), len(all), strings.Join(missed, "\n  "))
	require.Less(t, len(missed), len(all)/2, "most runs must get to the write at which they kill")
}

// points returns where to kill: at the first write of each kind, and at one in the middle; or at every one.
func points(c *counter, every bool) (firsts, more []point) {
	for _, k := range c.classes() {
		renewal := k.who == shard && k.write == "PUT leases"
		if renewal && k.phase == stage.Begin {
			continue
		}
		firsts = append(firsts, point{k, 1})
		n := c.counts[k]
		switch {
		case renewal:
		case every:
			for i := range n - 1 {
				more = append(more, point{k, i + 2})
			}
		case n > 1 && k.who != shard:
			more = append(more, point{k, n/2 + 1})
		}
	}
	return firsts, more
}

// killing is where a run kills.
type killing struct {
	point
	after bool // after the write was applied, and not before it is forwarded
}

// String is the name of the run.
func (k killing) String() string {
	if k.after {
		return "killed after " + k.point.String()
	}
	return "killed before " + k.point.String()
}

// kill plays the scenario up to the phase of the write, kills whoever makes it just before it is forwarded, or just after it
// was applied, and reports whether that write was made.
func (s *suite) kill(t *testing.T, i, n int, k killing) (reached bool) {
	t.Helper()
	var counted counter
	var mu sync.Mutex
	phases := map[stage.Phase][]stage.Phase{
		stage.Begin: {}, stage.Join: {stage.Join}, stage.Fail: {stage.Join, stage.Fail}, stage.Delete: {},
	}
	s.run(t, i, n, stage.Case{
		Name:   k.String(),
		Phases: phases[k.phase],
		Prepare: func(w *stage.World) {
			for _, m := range append(w.Members(false), w.Members(true)...) {
				m.Proxy.Hook(func(write proxy.Write) proxy.Action {
					if of := classify(w, m, write); of != k.class || counted.next(of) != k.point {
						return proxy.Action{}
					}
					mu.Lock()
					reached = true
					mu.Unlock()
					if k.after {
						return proxy.Action{Lose: true, Applied: func(proxy.Done) { m.Process().Kill() }}
					}
					m.Process().Kill()
					return proxy.Action{Abort: true}
				})
			}
		},
	})
	mu.Lock()
	defer mu.Unlock()
	return reached
}
