package sweep

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/tools/faults/faultrun"
	"github.com/clusterring/clusterring/tools/lab/must"
	"github.com/clusterring/clusterring/tools/testkit/proxy"
)

// enough is how long all tests may have taken when the sweep, the last of them, begins to leave out what is not the
// first write of its kind, so that all ends within a quarter of an hour on a slow machine, too.
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
		all   []*killing
		cases []faultrun.Case
	)

	for i, p := range slices.Concat(firsts, more) {
		for _, after := range []bool{false, true} {
			k := &killing{point: p, after: after}
			all = append(all, k)
			c := k.asCase()
			c.Skip = func() bool {
				k.left = i >= len(firsts) && !every && time.Since(s.began) > enough
				return k.left
			}
			cases = append(cases, c)
		}
	}
	s.run(t, cases...)

	left, missed := 0, []string(nil)

	for _, k := range all {
		switch {
		case k.left:
			left++
		case !k.reached.Load():
			missed = append(missed, k.String())
		}
	}
	say("writes that did not happen in their run, for what is written differs a little each time:\n  %s",
		strings.Join(missed, "\n  "))
	s.note("points to kill at: %d, of %d kinds of writes; killed at %d, not reached %d, "+
		"left out for want of time %d (none at the first of its kind)",
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

// upTo are the phases that a run needs besides the first and the last one, to get to a phase.
var upTo = map[faultrun.Phase][]faultrun.Phase{
	faultrun.Begin: {}, faultrun.Join: {faultrun.Join}, faultrun.Fail: {faultrun.Join, faultrun.Fail}, faultrun.Delete: {},
}

// asCase is the scenario up to the phase of the write, in which the process that makes it is killed just before it is
// forwarded, or just after it was applied.
func (k *killing) asCase() faultrun.Case {
	var counted counter

	return faultrun.Case{
		Name:   k.String(),
		Phases: upTo[k.phase],
		Prepare: func(run *faultrun.Run) {
			for _, m := range append(run.Members(false), run.Members(true)...) {
				m.Proxy.Hook(func(write proxy.Write) proxy.Action {
					if of := classify(run, m, write); of != k.class || counted.next(of) != k.point {
						return proxy.Action{}
					}
					k.reached.Store(true)

					return killed(m, k.after)
				})
			}
		},
	}
}

// killed kills the process that makes a write: after the write was applied, or before it is forwarded.
func killed(m *faultrun.Member, after bool) proxy.Action {
	if after {
		return proxy.Action{Lose: true, Applied: func(proxy.Done) { _ = m.Process().Kill() }} // one that is gone will do
	}

	_ = m.Process().Kill()

	return proxy.Action{Abort: true}
}

// shard stands for any shard.
const shard = "shard"

// class is a kind of write: who writes what, and in which phase.
type class struct {
	who   string // a service, or "shard" for any
	phase faultrun.Phase
	write string
}

// String is part of the name of a run.
func (c class) String() string { return fmt.Sprintf("%s, %s: %s", c.who, c.phase, c.write) }

// point is one write in a run: the n-th of its class, from 1.
type point struct {
	class
	ordinal int
}

// String is part of the name of a run.
func (p point) String() string { return fmt.Sprintf("%s #%d", p.class, p.ordinal) }

// classify says what a write does: method, resource, and for labels what becomes of them.
func classify(run *faultrun.Run, m *faultrun.Member, write proxy.Write) class {
	who := m.Name
	if m.IsShard() {
		who = shard
	}

	text := write.Method + " " + write.Resource
	if write.Subresource != "" {
		text += "/" + write.Subresource
	}

	var changes []string

	for label, value := range write.Labels() {
		kind, _, _ := strings.Cut(label, ".") // shard or drain
		switch {
		case label == contract.LabelState && value != nil:
			changes = append(changes, "state="+*value)
		case !strings.HasPrefix(label, contract.LabelShardPrefix) && !strings.HasPrefix(label, contract.LabelDrainPrefix):
		case value == nil:
			changes = append(changes, "-"+kind)
		default:
			changes = append(changes, "+"+kind)
		}
	}
	slices.Sort(changes)

	return class{who: who, phase: run.Phase(), write: strings.Join(append([]string{text}, changes...), " ")}
}

// counter numbers the writes of each class.
type counter struct {
	mu     sync.Mutex
	counts map[class]int
}

// next counts a write.
func (c *counter) next(of class) point {
	c.mu.Lock()
	defer c.mu.Unlock()

	if c.counts == nil {
		c.counts = map[class]int{}
	}
	c.counts[of]++

	return point{of, c.counts[of]}
}

// classes returns all that were counted, in a fixed order.
func (c *counter) classes() []class {
	c.mu.Lock()
	defer c.mu.Unlock()

	var all []class
	for k := range c.counts {
		all = append(all, k)
	}

	order := []faultrun.Phase{faultrun.Begin, faultrun.Join, faultrun.Fail, faultrun.Delete}
	slices.SortFunc(all, func(a, b class) int {
		return cmp.Or(cmp.Compare(a.who, b.who), cmp.Compare(slices.Index(order, a.phase), slices.Index(order, b.phase)),
			cmp.Compare(a.write, b.write))
	})

	return all
}

// failures are the ways in which a write fails.
var failures = []struct {
	name   string
	action proxy.Action
}{
	{"conflict", proxy.Action{Status: http.StatusConflict}},
	{"too many requests", proxy.Action{Status: http.StatusTooManyRequests}},
	{"internal error", proxy.Action{Status: http.StatusInternalServerError}},
	{"timeout before", proxy.Action{Status: http.StatusGatewayTimeout}},
	{"timeout though applied", proxy.Action{Lose: true, Status: http.StatusGatewayTimeout}},
	{"connection closed before", proxy.Action{Abort: true}},
	{"connection closed though applied", proxy.Action{Lose: true}},
}

// TestWrites fails the first and the third write of each kind, in each of these ways: once for all services, and once
// for all shards, but for the renewals of their Leases.
func TestWrites(t *testing.T) {
	s := theSuite(t)

	var cases []faultrun.Case

	for _, f := range failures {
		for _, shards := range []bool{false, true} {
			who := "services"
			if shards {
				who = "shards"
			}

			var counted counter

			cases = append(cases, faultrun.Case{Name: f.name + " for writes of " + who, Prepare: func(run *faultrun.Run) {
				for _, m := range run.Members(shards) {
					m.Proxy.Hook(func(write proxy.Write) proxy.Action {
						renewal := shards && write.Resource == "leases"
						if n := counted.next(classify(run, m, write)).ordinal; !renewal && (n == 1 || n == 3) {
							return f.action
						}

						return proxy.Action{}
					})
				}
			}})
		}
	}
	s.run(t, cases...)
}

// TestWatches delays the events of watches by a second, and loses them for longer than it takes to give a shard up.
func TestWatches(t *testing.T) {
	s := theSuite(t)
	everybody := []string{"", faultrun.LeaseMonitor, faultrun.Assigner, faultrun.Rebalancer, shard}

	var cases []faultrun.Case

	for _, who := range everybody {
		concerned := func(run *faultrun.Run) []*faultrun.Member {
			switch who {
			case "":
				return run.Members(false)
			case shard:
				return run.Members(true)
			default:
				return []*faultrun.Member{run.Member(who)}
			}
		}

		name := who
		if who == "" {
			name = "every service"
		}

		set := func(watching proxy.Watching) func(context.Context, *faultrun.Run) {
			return func(_ context.Context, run *faultrun.Run) {
				for _, m := range concerned(run) {
					m.Proxy.Watches(watching)
				}
			}
		}

		cases = append(cases, faultrun.Case{
			Name:    "events come a second late to " + name,
			Prepare: func(run *faultrun.Run) { set(proxy.Watching{Delay: time.Second})(nil, run) },
		})
		again := func(ctx context.Context, run *faultrun.Run) {
			must.Pause(ctx, 2500*time.Millisecond)

			for _, m := range concerned(run) {
				m.Proxy.Watches(proxy.Watching{})
				m.Proxy.CloseWatches()
			}
		}
		cases = append(cases, faultrun.Case{
			Name:   "events of 2.5 s are lost to " + name,
			After:  during{faultrun.Begin: set(proxy.Watching{Drop: true}), faultrun.Join: set(proxy.Watching{Drop: true})},
			During: during{faultrun.Join: again, faultrun.Fail: again},
		})
	}
	s.run(t, cases...)
}

// TestEmbedded kills the shard that is elected as the sharder, at writes of the sharder: the election and the shard's
// own objects both move. There are no services.
func TestEmbedded(t *testing.T) {
	s := theSuite(t)
	rings := []faultrun.RingSpec{{
		// their Pods have an account of their own
		Shards: []string{"embedded-a", "embedded-b", "embedded-c", "embedded-d"}, Embedded: true,
	}}

	type kill struct {
		phase faultrun.Phase
		write string
		after bool
	}

	kills := []kill{
		{phase: faultrun.Begin, write: "PATCH clusterrings", after: true},
		{phase: faultrun.Begin, write: "PATCH websites +shard -drain", after: true},
		{phase: faultrun.Join, write: "PATCH websites +drain +shard"},
		{phase: faultrun.Join, write: "PATCH clusterrings/status"},
		{phase: faultrun.Fail, write: "PUT leases", after: true},
		{phase: faultrun.Delete, write: "PATCH websites +drain +shard", after: true},
	}

	cases := []faultrun.Case{{Name: "no fault", Rings: rings}}
	reached := make([]atomic.Bool, len(kills))

	for i, k := range kills {
		name := "killed before " + k.write
		if k.after {
			name = "killed after " + k.write
		}

		cases = append(cases,
			faultrun.Case{Name: string(k.phase) + ": " + name, Rings: rings, Phases: upTo[k.phase], Prepare: func(run *faultrun.Run) {
				for _, m := range run.Members(true) {
					m.Proxy.Hook(func(write proxy.Write) proxy.Action {
						election := write.Resource == "leases" && strings.HasPrefix(write.Name, "sharder-")
						if !faultrun.BySharder(write) || election || run.Phase() != k.phase || classify(run, m, write).write != k.write ||
							reached[i].Swap(true) {
							return proxy.Action{}
						}

						return killed(m, k.after)
					})
				}
			}, During: during{k.phase: func(ctx context.Context, run *faultrun.Run) {
				run.Until(ctx, "the sharder makes the write at which it is killed", reached[i].Load)
			}}})
	}

	s.run(t, cases...)
}
