package sweep

import (
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/tools/faults/faultrun"
	"github.com/clusterring/clusterring/tools/faults/proxy"
)

// enough is how long all tests may have taken when the sweep, the last of them, begins to leave out what is not the first
// write of its kind, so that all ends within a quarter of an hour on a slow machine, too.
const enough = 9 * time.Minute

// count plays the scenario without a fault and returns what is written in it.
func (s *suite) countWrites(t *testing.T) *counter {
	t.Helper()

	var c counter

	results := s.run(t, faultrun.Case{Name: "no fault, writes are counted", Prepare: func(run *faultrun.Run) {
		for _, m := range append(run.Members(false), run.Members(true)...) {
			m.Proxy.Hook(func(write proxy.Write) proxy.Action {
				c.next(classify(run, m, write))
				return proxy.Action{}
			})
		}
	}})
	require.True(t, results[0].OK(), "no fault was injected")

	return &c
}

// TestKill kills each service, and the shards, before and after each write. Each run kills at one write.
func TestKill(t *testing.T) {
	s := theSuite(t)
	counted := s.countWrites(t)
	every := os.Getenv(variable) == "all"
	firsts, more := points(counted, every)
	say("%d kinds of writes; tried are the first of each kind and %d more, each before and after", len(firsts), len(more))

	for _, c := range counted.classes() {
		say("%4d × %s", counted.counts[c], c)
	}

	var (
		all    []*killing
		trials []trial
	)

	for i, p := range slices.Concat(firsts, more) {
		for _, after := range []bool{false, true} {
			k := &killing{point: p, after: after}
			all = append(all, k)
			trials = append(trials, trial{Case: k.asCase(), Skip: func() bool {
				k.left = i >= len(firsts) && !every && time.Since(s.began) > enough
				return k.left
			}})
		}
	}
	s.try(t, trials)

	left, missed := 0, []string(nil)

	for _, k := range all {
		switch {
		case k.left:
			left++
		case !k.reached.Load():
			missed = append(missed, k.String())
		}
	}
	say("writes that did not happen in their run, for what is written differs a little each time:\n  %s", strings.Join(missed, "\n  "))
	s.note("points to kill at: %d, of %d kinds of writes; killed at %d, not reached %d, left out for want of time %d (none at the first of its kind)",
		len(all), len(firsts), len(all)-left-len(missed), len(missed), left)
	require.Less(t, len(missed), len(all)/2, "most runs must get to the write at which they kill")
}

// points returns where to kill: at the first write of each kind, and at one in the middle; or at every one.
func points(c *counter, every bool) (firsts, more []point) {
	for _, k := range c.classes() {
		renewal := k.who == shard && k.write == "PUT leases"
		if renewal && k.phase == faultrun.Begin {
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
	after   bool        // after the write was applied, and not before it is forwarded
	reached atomic.Bool // the write was made
	left    bool        // it was not tried
}

// String is the name of the run.
func (k *killing) String() string {
	if k.after {
		return "killed after " + k.point.String()
	}

	return "killed before " + k.point.String()
}

// asCase is the scenario up to the phase of the write, in which whoever makes it is killed just before it is forwarded, or just
// after it was applied.
func (k *killing) asCase() faultrun.Case {
	var counted counter

	phases := map[faultrun.Phase][]faultrun.Phase{
		faultrun.Begin: {}, faultrun.Join: {faultrun.Join}, faultrun.Fail: {faultrun.Join, faultrun.Fail}, faultrun.Delete: {},
	}

	return faultrun.Case{
		Name:   k.String(),
		Phases: phases[k.phase],
		Prepare: func(run *faultrun.Run) {
			for _, m := range append(run.Members(false), run.Members(true)...) {
				m.Proxy.Hook(func(write proxy.Write) proxy.Action {
					if of := classify(run, m, write); of != k.class || counted.next(of) != k.point {
						return proxy.Action{}
					}
					k.reached.Store(true)

					if k.after {
						return proxy.Action{Lose: true, Applied: func(proxy.Done) { _ = m.Process().Kill() }} // one that is gone will do
					}

					_ = m.Process().Kill()

					return proxy.Action{Abort: true}
				})
			}
		},
	}
}
