package engine

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"
	testclock "k8s.io/utils/clock/testing"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/rebalancer/feed"
	"github.com/clusterring/clusterring/services/rebalancer/move"
	"github.com/clusterring/clusterring/services/rebalancer/work"
)

// goingOver is an engine whose passes the test begins and ends.
type goingOver struct {
	*testing.T
	e     *Engine
	clock *testclock.FakeClock
	base  *Target
}

// pass are passes in progress, one of each resource that is due.
type pass struct {
	visits []*visit

	g *goingOver
}

const settlePeriod = 5 * time.Second

var configMaps = schema.GroupResource{Resource: "configmaps"}

func newGoingOver(t *testing.T, budget float64) *goingOver {
	t.Helper()

	g := &goingOver{T: t, clock: testclock.NewFakeClock(time.Unix(1_000_000_000, 0)), base: target("passes")}
	g.e = New(Config{
		Ring: "passes", Clock: g.clock,
		Limits: Limits{Total: 10, PerShard: 10, DrainTimeout: time.Minute, Settle: settlePeriod, AuditBudget: budget},
	})
	g.ring("a", "b", "c")

	return g
}

// ring changes the available shards. The sources follow immediately.
func (g *goingOver) ring(shards ...string) { followAtOnce(g.e, of(g.base, shards...)) }

// followAtOnce gives a target to an engine without sources, as if they had followed it.
func followAtOnce(e *Engine, t *Target) {
	e.update(func(now time.Time) { e.retarget(now, t) })
	s := newSources(e)
	s.target = t
	s.ask(nil, nil)
	e.update(func(time.Time) { delete(e.unlisted, newTarget) })
}

func (g *goingOver) due() (kind, time.Duration) {
	next, at, audits := g.e.nextPass()
	in := at.Sub(g.clock.Now())

	switch {
	case in > 0:
		return noPass, in
	case audits:
		return audit, in
	case next.owed:
		return change, in
	}

	return check, in
}

// nothing expects that no pass is due for the given time, and lets the time pass.
func (g *goingOver) nothing(d time.Duration) {
	g.Helper()

	k, in := g.due()
	require.Equal(g, noPass, k)
	require.Equal(g, d, in)
	g.clock.Step(d)
}

// begin expects that a pass is due, and begins it.
func (g *goingOver) begin(want kind) *pass {
	g.Helper()

	k, _ := g.due()
	require.Equal(g, want, k)

	p := &pass{g: g}

	for _, l := range g.e.looks {
		audits := !g.clock.Now().Before(l.ended.Add(g.e.pace()))
		if at := l.due(g.e); audits || !at.IsZero() && !at.After(g.clock.Now()) {
			p.visits = append(p.visits, g.e.begin(l, audits))
		}
	}

	return p
}

// end ends the pass. A resource of which no error is given has none.
func (p *pass) end(errs ...error) {
	for i, v := range p.visits {
		if i < len(errs) {
			p.g.e.finish(v, errs[i])
		} else {
			p.g.e.finish(v, nil)
		}
	}
}

func (g *goingOver) verified() bool {
	g.due()

	return g.e.verified() == len(g.e.looks)
}

// first is what is known about the first resource.
func (g *goingOver) first() *look { return g.e.looks[0] }

// verify makes the ring verified.
func (g *goingOver) verify() {
	g.Helper()
	g.begin(change).end(nil)
	require.False(g, g.verified(), "the pass began before the end of the settle period")
	g.clock.Step(settlePeriod)
	g.begin(check).end(nil)
	require.True(g, g.verified())
}

func (g *goingOver) object(shard, version string, drain bool) feed.Object {
	id := feed.ID{GVR: corev1.SchemeGroupVersion.WithResource("configmaps"), Namespace: "n", Name: "x"}

	return feed.Object{ID: id, ResourceVersion: version, Shard: shard, Labelled: true, Draining: drain}
}

// misplaced makes the object seen out of its place. put makes it seen in its place.
func (g *goingOver) misplaced() { g.e.saw(g.e.Target(), &sight{object: g.object("a", "1", false)}) }
func (g *goingOver) put() {
	g.e.saw(g.e.Target(), &sight{object: g.object("b", "9", false), at: move.Assessment{InPlace: true}})
}

func TestPassesVerify(t *testing.T) {
	g := newGoingOver(t, 0)
	g.verify()
	g.nothing(auditEvery)
	g.begin(audit).end(nil)
	require.True(t, g.verified())

	g.ring("a", "b", "c", "d")
	require.False(t, g.verified(), "the target has changed")
	g.verify()
}

// Only a pass that shows the current state of all objects verifies a ring.
func TestPassesDoNotVerify(t *testing.T) {
	for what, during := range map[string]func(g *goingOver, p *pass){
		"it fails":            func(_ *goingOver, p *pass) { p.end(errors.New("503")) },
		"an object was found": func(g *goingOver, p *pass) { g.misplaced(); p.end(nil) },
		"an object was moved": func(g *goingOver, p *pass) {
			g.misplaced()
			_, _ = g.e.table.Take(g.clock.Now())
			g.e.report(g.object("", "", false).ID, work.Outcome{Object: new(g.object("b", "2", false)), Next: work.InPlace})
			p.end(nil)
		},
		"an object was released": func(g *goingOver, p *pass) {
			g.e.saw(g.e.Target(), &sight{object: g.object("a", "1", true)})
			g.e.update(func(now time.Time) { g.e.table.Released(now, g.object("", "", false).ID, "2") })
			p.end(nil)
		},
		"another ring since":     func(g *goingOver, p *pass) { g.ring("a", "b"); p.end(nil) },
		"another ring, and back": func(g *goingOver, p *pass) { g.ring("a", "b"); g.ring("a", "b", "c"); p.end(nil) },
	} {
		t.Run(what, func(t *testing.T) {
			g := newGoingOver(t, 0)
			g.begin(change).end(nil)
			g.clock.Step(settlePeriod)

			p := g.begin(check)
			during(g, p)
			require.False(t, g.verified())
			g.put()
			require.False(t, g.verified())

			passes := 0

			for !g.verified() {
				k, in := g.due()
				if k == noPass {
					g.clock.Step(in)
					continue
				}

				g.begin(k).end(nil)

				passes++
			}

			require.Positive(t, passes)
			require.Less(t, passes, 4)
		})
	}
}

// An object that a source has yet to list may be out of place. The pass counts when the list is complete and the object
// is not.
func TestPassesWaitForLists(t *testing.T) {
	g := newGoingOver(t, 0)
	g.begin(change).end(nil)
	g.clock.Step(settlePeriod)
	p := g.begin(check)
	g.e.listing(sourceID{looksFor: "x"}, true)
	p.end(nil)
	require.False(t, g.verified())

	_, in := g.due()
	require.Positive(t, in, "a check would prove nothing")
	g.e.listed(sourceID{looksFor: "x"})
	require.True(t, g.verified())
}

// A pass that began before a debt does not settle the debt, and neither does a pass that fails.
func TestPassesForgetNothing(t *testing.T) {
	owes := func(d work.Debt) func(*goingOver) { return func(g *goingOver) { g.e.owe(d) } }

	for what, tc := range map[string]struct {
		owe  func(g *goingOver)
		kind kind
	}{
		"a pass":  {owe: owes(work.Debt{All: true}), kind: change},
		"a check": {owe: owes(work.Debt{Unseen: sets.New(configMaps)}), kind: check},
	} {
		t.Run(what, func(t *testing.T) {
			g := newGoingOver(t, 0)
			g.verify()
			g.clock.Step(time.Minute)

			before := g.begin(audit)
			tc.owe(g)
			before.end(nil)
			require.False(t, g.verified(), "the audit began earlier")

			for range 3 {
				p := g.begin(tc.kind)
				p.end(errors.New("503"))
				require.False(t, g.verified())

				_, in := g.due()
				g.clock.Step(in)
			}

			// The ring changes during the pass.
			p := g.begin(tc.kind)
			g.ring("a", "b", "c", "d", "e")
			g.ring("a", "b", "c", "d")
			p.end(nil)
			require.True(t, g.first().owed)
			require.False(t, g.verified())

			g.begin(change).end(nil)
			g.clock.Step(settlePeriod)
			g.begin(check).end(nil)
			require.True(t, g.verified())
		})
	}
}

// A pass that fails, or that makes another one due immediately, is not repeated without pauses.
func TestPassesAreSpacedOut(t *testing.T) {
	for what, once := range map[string]func(g *goingOver){
		"failing": func(g *goingOver) { g.begin(change).end(errors.New("503")) },
		"finding": func(g *goingOver) { g.begin(change).end(nil); g.e.owe(work.Debt{All: true}) },
		"failing to check": func(g *goingOver) {
			g.first().owed = false
			g.begin(check).end(errors.New("503"))
		},
		"moving": func(g *goingOver) {
			g.first().owed = false
			p := g.begin(check)
			g.e.owe(work.Debt{Unseen: sets.New(configMaps)})
			p.end(nil)
		},
	} {
		t.Run(what, func(t *testing.T) {
			g := newGoingOver(t, 0)
			g.clock.Step(settlePeriod)

			began, n := g.clock.Now(), 0

			for g.clock.Since(began) < 10*time.Minute {
				once(g)

				n++
				g.first().ended = g.clock.Now() // the audit is not the subject here

				k, in := g.due()
				require.Equal(t, noPass, k)
				require.LessOrEqual(t, in, 36*time.Second)
				g.clock.Step(in)
			}

			require.LessOrEqual(t, n, 10+10*2)

			once(g)
			g.ring("a", "b", "c", "d")
			g.begin(change).end(errors.New("503")) // immediately
			_, in := g.due()
			require.Less(t, in, time.Second, "the pauses should restart")
		})
	}
}

// The pauses restart when a ring is verified.
func TestPassesOfAVerifiedRingBeginAnew(t *testing.T) {
	g := newGoingOver(t, 0)
	for range 12 {
		g.begin(change).end(errors.New("503"))
		g.first().ended = g.clock.Now() // the audit is not the subject here
		_, in := g.due()
		g.clock.Step(in)
	}

	g.begin(change).end(nil)
	require.True(t, g.verified())
	g.clock.Step(time.Minute)
	g.e.owe(work.Debt{Unseen: sets.New(configMaps)})
	g.begin(check).end(errors.New("503"))

	_, in := g.due()
	require.Less(t, in, time.Second)
}

// TestAudit verifies that the audit stays within its budget, and also repairs a ring that cannot be verified.
func TestAudit(t *testing.T) {
	g := newGoingOver(t, 0.02)
	g.verify()
	g.nothing(time.Minute)

	p := g.begin(audit)
	p.visits[0].sees = 1_000_000
	p.end(nil)
	g.nothing(1_000_000 * work.PerObject * 50)

	g.begin(audit).end(errors.New("503"))
	require.True(t, g.verified(), "unseen objects prove nothing")
	g.nothing(1_000_000 * work.PerObject * 50)

	p = g.begin(audit)
	p.visits[0].sees = 10
	p.end(nil)
	g.misplaced()
	g.nothing(time.Minute)
	g.begin(audit).end(nil)

	g.e.owe(work.Debt{Unseen: sets.New(configMaps)})
	require.False(t, g.verified())
	g.nothing(time.Minute)
	g.begin(audit).end(nil)
	g.put()
	require.NotEqual(t, g.first().moved, g.e.table.Moved(configMaps), "it has moved since")
	require.False(t, g.verified())
	g.begin(check).end(nil)
	require.True(t, g.verified())
}

// Shards that continuously come and go do not prevent a pass over all objects.
func TestChangesDoNotPutOffALookAtEverything(t *testing.T) {
	g := newGoingOver(t, 0)
	g.base = target("passes", "secrets")
	g.ring("a", "b", "c")
	g.verify()

	looked := g.clock.Now()

	for i := 1; ; i++ {
		g.ring(append([]string{"a", "b", "c"}, []string{"d"}[:i%2]...)...)
		g.clock.Step(time.Second)

		k, _ := g.due()
		p := g.begin(k)
		g.ring("a", "b") // during the pass
		p.end(nil)

		if len(p.visits) == len(g.e.looks) {
			break
		}

		require.Equal(t, change, k)
		require.Less(t, g.clock.Since(looked), 2*auditEvery)
	}

	require.GreaterOrEqual(t, g.clock.Since(looked), auditEvery, "a change should not cost a pass over all objects")

	g.ring("a", "b", "c")
	require.Len(t, g.begin(change).visits, 1, "a pass over all objects has just run")
}

// A pass over very many objects does not delay objects that no shard works on, as long as these objects are moved, or
// found.
func TestPassesLetUrgentObjectsGoFirst(t *testing.T) {
	for what, tc := range map[string]struct {
		// left are the numbers of objects in progress in the middle of each 10 s.
		left  []int
		waits time.Duration
	}{
		"nothing is urgent":         {left: []int{0}},
		"they cannot be moved":      {left: []int{3, 3}, waits: time.Minute},
		"they are moved":            {left: []int{3, 2, 1, 0}, waits: 35 * time.Second},
		"they are found, and moved": {left: []int{1, 3, 0}, waits: 25 * time.Second},
		"more come all the time":    {left: slices.Repeat([]int{4, 3}, 20), waits: time.Minute},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := New(Config{Ring: "urgent", Clock: clock.RealClock{}, Limits: Limits{Workers: 1, Total: 10, PerShard: 10}})
				followAtOnce(e, of(target("urgent"), "a", "b"))

				ctx, cancel := context.WithCancel(t.Context())
				version := 0
				leave := func(left int) {
					for i := range 4 {
						version++
						o := feed.Object{ID: feed.ID{GVR: corev1.SchemeGroupVersion.WithResource("configmaps"), Name: strconv.Itoa(i)},
							ResourceVersion: strconv.Itoa(version)}
						e.saw(e.Target(), &sight{object: o, at: move.Assessment{InPlace: i >= left}})
					}
				}

				leave(tc.left[0])

				var others sync.WaitGroup
				others.Go(func() {
					e.sleep(ctx, e.Clock.Now().Add(5*time.Second), nil)

					for _, left := range tc.left[1:] {
						e.sleep(ctx, e.Clock.Now().Add(10*time.Second), nil)
						leave(left)
					}
				})

				began := e.Clock.Now()
				e.awaitUrgent(ctx)
				require.Equal(t, tc.waits, e.Clock.Since(began))
				cancel()
				others.Wait()
			})
		})
	}
}

// A resource is verified whatever happens to others, except that what follows main objects is verified only with all of
// these.
func TestPassesVerifyEachResource(t *testing.T) {
	g := newGoingOver(t, 0)
	mapper := meta.NewDefaultRESTMapper(nil)

	for _, kind := range []string{"ConfigMap", "Secret", "Service"} {
		mapper.Add(corev1.SchemeGroupVersion.WithKind(kind), meta.RESTScopeNamespace)
	}

	g.base.Set = resources.Resolve(mapper, v1alpha1.ClusterRingSpec{Resources: []v1alpha1.RingResource{
		{Resource: "configmaps", ControlledResources: []v1alpha1.ControlledResource{{Resource: "secrets"}}},
		{Resource: "services"},
	}})
	g.ring("a", "b", "c")

	settled := func() (names []string) {
		g.due()

		for of := range g.e.Report().Settled {
			names = append(names, of.String())
		}

		slices.Sort(names)

		return names
	}

	down := errors.New("503")
	services := sourceID{looksFor: forMisplaced, Place: work.Place{Of: schema.GroupResource{Resource: "services"}}}

	g.begin(change).end(nil, down, nil) // configmaps, services, secrets
	g.e.troubled(services, down)
	g.clock.Step(settlePeriod)

	p := g.begin(change)
	require.Len(t, p.visits, 3)
	p.end(nil, down, nil)
	require.Equal(t, []string{"configmaps"}, settled(), "what follows services may have been left behind")

	g.misplaced()
	require.Empty(t, settled())
	g.put()
	require.Equal(t, []string{"configmaps"}, settled())

	_, in := g.due()
	g.clock.Step(in)

	p = g.begin(change)
	require.Len(t, p.visits, 1, "only services have to be visited again")
	p.end(nil)
	g.e.troubled(services, nil)
	require.Equal(t, []string{"configmaps", "secrets", "services"}, settled())
	require.True(t, g.e.Report().Converged)

	g.e.owe(work.Debt{Unseen: sets.New(configMaps)})
	require.Equal(t, []string{"services"}, settled(), "an object was released, and perhaps not what follows it")
	require.False(t, g.e.Report().Converged)
}

// If a pass over all objects had to wait for urgent objects for longer than the settle period, no other pass has to
// follow it, because no object of this ring follows another.
func TestLateLookIsEnough(t *testing.T) {
	g := newGoingOver(t, 1)
	g.verify()
	g.ring("a", "b", "c", "d")
	g.clock.Step(settlePeriod)

	late := g.begin(change)
	late.end(nil)
	require.True(t, g.verified())

	g.base = target("passes", "secrets")
	g.ring("a", "b", "c", "d", "e")
	g.begin(change).end(nil)
	g.clock.Step(settlePeriod)
	g.begin(check).end(nil)
	g.ring("a", "b", "c", "d", "e", "f")

	early := g.begin(change)
	require.Len(t, early.visits, 1, "it visits only main objects")
	early.end(nil)
	g.ring("a", "b", "c", "d", "e", "f", "g")
	g.clock.Step(settlePeriod)

	late = g.begin(change)
	require.Len(t, late.visits, 2, "it is late enough to check also what follows these")
	late.end(nil)
	require.True(t, g.verified())
}
