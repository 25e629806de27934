package engine

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/key"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

func TestMain(m *testing.M) { os.Exit(localplane.Main(m, v1alpha1.AddToScheme)) }

// At rest, an engine sends only the requests of its audits, however many objects exist.
func TestAtRestNothingIsAskedButByTheAudit(t *testing.T) {
	r := newWorld(t, atRest)
	for i := range 20 {
		r.owner(fmt.Sprintf("at-rest-%d", i), "a")
	}

	r.e.SetTarget(target(r.ring))
	r.run()
	r.converges()

	before := len(r.since(0))
	r.await(func() bool { // until an audit has ended; no time passes after it
		if r.passes(before) > 0 {
			return true
		}

		r.goesBy(1)

		return false
	})
	r.await(func() bool { return r.e.Clock.Since(r.e.lastPass()) == 0 })

	before = len(r.since(0))

	for range 58 {
		r.fake.Step(time.Second)
	}

	// All requests that the steps have caused were sent before this object is labeled: it takes one patch and nothing
	// else.
	late := r.owner("late", "")
	r.becomes(late, "a", false)

	after := r.since(before)
	require.Len(t, after, 1, "no requests should be sent at rest")
	require.True(t, strings.HasPrefix(after[0].String(), "PATCH"), "%s", after[0])

	for want := 1; want < 4; want++ {
		began := r.fake.Now()
		r.await(func() bool {
			r.goesBy(1)
			return r.passes(before) == want
		})
		require.True(t, want == 1 || r.fake.Since(began) >= auditEvery-time.Second, "audits should not be more frequent")
	}
}

// lastPass returns since when passes over all resources have ended.
func (e *Engine) lastPass() time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()

	return slices.MinFunc(e.looks, func(a, b *look) int { return a.ended.Compare(b.ended) }).ended
}

// passes counts the passes over all labeled objects.
func (w *world) passes(since int) int {
	return len(slices.DeleteFunc(w.since(since), func(a asked) bool {
		return a.String() != "LIST /api/v1/configmaps "+contract.ShardLabel(w.ring)
	}))
}

// Objects of shards that have lost no partitions are in their places. They are not visited to verify this immediately,
// because there may be very many. They are visited once when the shards have not changed for a while.
func TestDeathIsDealtWithWithoutALookAtAllObjects(t *testing.T) {
	r := newWorld(t, atRest)
	all := target(r.ring)
	three := of(all, "a", "b", "c")

	for i := range 100 { // enough objects that some belong to a shard that joins, whatever the namespace is called
		name := fmt.Sprintf("at-rest-%d", i)
		owner, _ := three.View.Owner(key.Key{Kind: "ConfigMap", Namespace: r.ns, Name: name})

		if owner != "c" {
			r.owner(name, owner)
		}
	}

	r.e.SetTarget(three)
	r.run()
	r.converges()

	require.NotZero(t, r.passes(0), "nothing is known about the ring yet")

	before := len(r.since(0))
	r.e.SetTarget(of(all, "a", "b"))
	r.await(func() bool {
		return slices.ContainsFunc(r.since(before), func(a asked) bool {
			return strings.HasSuffix(a.selector, "notin (a,b)")
		})
	})
	require.Zero(t, r.passes(before), "only the objects without an available shard should be listed")
	require.False(t, r.e.Report().Converged)

	r.converges()
	require.Equal(t, 1, r.passes(before))

	before = len(r.since(0))
	r.e.SetTarget(of(all, "a", "b", "d"))
	r.await(func() bool { return r.e.Report().Misplaced+r.e.Report().Draining > 0 })
	require.Equal(t, 1, r.passes(before), "all shards lose partitions to a shard that joins")
}

func TestGrace(t *testing.T) {
	begin := time.Unix(1_000_000_000, 0)
	g := &grace{}

	g.retarget(begin, 1, 1, true)
	require.LessOrEqual(t, g.wait(begin), time.Duration(0), "no wait in a ring of which nothing is known")

	g.known = 4
	g.retarget(begin, 1, 4, false)
	require.LessOrEqual(t, g.wait(begin), time.Duration(0), "three have left, and none has come back")
	g.retarget(begin, 0, 4, false)
	g.retarget(begin, 1, 4, true)
	require.Equal(t, comeback, g.wait(begin), "the first one has come back")
	require.LessOrEqual(t, g.wait(begin.Add(comeback)), time.Duration(0), "the wait has an end")

	later := begin.Add(comeback / 2)
	g.retarget(later, 2, 4, true)
	require.LessOrEqual(t, g.wait(later), time.Duration(0), "half of them are available")

	// Shards that crash come back all the time. Objects do not wait for the end of that.
	g = &grace{known: 4}
	for at := time.Duration(0); at < 2*longestComeback; at += time.Second {
		g.retarget(begin.Add(at), 0, 4, false)
		g.retarget(begin.Add(at), 1, 4, true)
		require.Equal(t, at < longestComeback, g.wait(begin.Add(at)) > 0, "after %s", at)
	}

	much := begin.Add(time.Hour)
	g.retarget(much, 0, 4, false)
	g.retarget(much, 1, 4, true)
	require.Equal(t, comeback, g.wait(much), "this is another disruption")

	g = &grace{}
	g.retarget(begin, 0, 4, false)
	g.retarget(begin, 1, 4, true)
	require.Equal(t, comeback, g.wait(begin), "a new leader knows the Leases of shards that are not available")
}

// After a disruption of all shards, the first shard that comes back would get all objects, and give them back when the
// others follow.
func TestFirstShardThatComesBackDoesNotGetEverything(t *testing.T) {
	r := newWorld(t, atRest)
	all := target(r.ring)
	three := of(all, "a", "b", "c")

	for _, name := range three.View.AvailableShards() {
		r.lease(name, false)
	}

	var objects []*corev1.ConfigMap

	for i := range 12 {
		name := fmt.Sprintf("object-%d", i)
		owner, _ := three.View.Owner(key.Key{Kind: "ConfigMap", Namespace: r.ns, Name: name})
		objects = append(objects, r.owner(name, owner))
	}

	at := func(name string) (n int) {
		for _, cm := range objects {
			require.NoError(t, r.client.Get(t.Context(), client.ObjectKeyFromObject(cm), cm))

			if cm.Labels[contract.ShardLabel(r.ring)] == name {
				n++
			}
		}

		return n
	}

	r.e.SetTarget(three)
	r.run()
	r.converges()

	mine := at("a")
	r.e.SetTarget(of(all))
	r.e.SetTarget(of(all, "a"))
	r.await(func() bool { return r.e.Report().Blocked == len(objects)-mine })
	require.Contains(t, r.e.Report().BlockedExample, "1 of 3 shards have come back")
	require.Equal(t, mine, at("a"))

	r.e.SetTarget(three)
	r.converges()
	require.Equal(t, mine, at("a"), "no objects should have moved")

	r.e.SetTarget(of(all))
	r.e.SetTarget(of(all, "a"))
	r.await(func() bool { return r.e.Report().Blocked == len(objects)-mine })
	r.fake.Step(comeback)
	r.await(func() bool { return at("a") == len(objects) })
}

// A label that names an available shard matches no watch, even if it is wrong. The audit finds and counts such objects.
func TestAuditRepairsLabelsThatNameLivingShards(t *testing.T) {
	for what, spoil := range map[string]func(w *world) (spoilt client.Object, shard string, drain bool){
		"an object restored from a backup": func(w *world) (client.Object, string, bool) {
			return w.owners("restored", "a", 1)[0], "a", true
		},
		"a child that was given to another owner": func(w *world) (client.Object, string, bool) {
			child, other := w.child(w.owner(w.namesAt(w.target, "a", "old", 1)[0], "a"), "child", "a"), w.owners("new",
				"b", 1)[0]
			w.rest()

			child.OwnerReferences = nil
			require.NoError(w, controllerutil.SetControllerReference(other, child, w.client.Scheme()))
			require.NoError(w, w.client.Update(w.Context(), child))

			return child, "b", false
		},
		"a child that was left behind": func(w *world) (client.Object, string, bool) {
			owner := w.owners("owner", "b", 1)[0]
			child := w.child(owner, "child", "b")
			w.rest()

			child.OwnerReferences = nil // what --cascade=orphan does
			require.NoError(w, w.client.Update(w.Context(), child))
			require.NoError(w, w.client.Delete(w.Context(), owner))

			return child, "", false
		},
		"a child that is elsewhere than its owner": func(w *world) (client.Object, string, bool) {
			return w.child(w.owners("owner", "b", 1)[0], "child", "a"), "b", false
		},
		"an object of a namespace that is not selected": func(w *world) (client.Object, string, bool) {
			ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "elsewhere-"}}
			require.NoError(w, w.client.Create(w.Context(), ns))

			cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns.Name, Name: "copied", Labels: w.at("a")}}
			require.NoError(w, w.client.Create(w.Context(), cm))

			return cm, "a", true
		},
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t, byHand)
			w.e.SetTarget(w.target)
			w.run()
			w.rest()

			o, shard, drain := spoil(w)
			require.Zero(t, w.audited())
			w.goesBy(int(auditEvery.Seconds()))
			w.comes(o, shard, drain)

			if drain {
				w.acknowledge(o)
			}

			w.converges()
			require.InDelta(t, 1, w.audited(), 0, "it should be counted once")
		})
	}
}

// A ring in which objects move converges only after a look at all objects. So a child that its shard has created too
// late, and that has the label of that shard, waits for no audit.
func TestWrongLabelOfAMovingRingNeedsNoAudit(t *testing.T) {
	w := newWorld(t, byHand)
	stays, moves := w.owners("stays", "b", 1)[0], w.owners("moves", "a", 1)[0]
	w.e.SetTarget(w.target)
	w.run()
	w.comes(moves, "a", true)

	began := w.e.Clock.Now()
	child := w.child(stays, "late", "a")
	w.acknowledge(moves)
	w.converges()
	require.True(t, w.placed(child, "b", false))
	require.Less(t, w.e.Clock.Since(began), auditEvery)
}

// rest waits until the ring has converged and an audit has just ended: the next one is due in a minute.
func (w *world) rest() {
	w.Helper()
	w.converges()

	before := w.e.Clock.Now()

	w.eventually(func() bool {
		w.goesBy(1)
		return w.e.lastPass().After(before)
	}, "an audit should run once a minute")
	w.converges()
}

// audited returns the number of misplaced objects that the audit has found.
func (w *world) audited() (n float64) {
	w.Helper()

	measured(w.T, w.ring, "clusterring_rebalancer_audit_found_total", func(value float64) { n += value })

	return n
}
