package engine

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/key"
	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/services/internal/takeover"
	"github.com/clusterring/clusterring/services/rebalancer/feed"
	"github.com/clusterring/clusterring/tools/testkit/leasetest"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

func TestMain(m *testing.M) { os.Exit(localplane.Main(m, v1alpha1.AddToScheme)) }

// requests records the requests of an engine to the API server.
type requests struct {
	next http.RoundTripper

	mu   sync.Mutex
	seen []string
}

func (r *requests) RoundTrip(req *http.Request) (*http.Response, error) {
	query := req.URL.Query()

	verb := req.Method

	switch {
	case query.Get("sendInitialEvents") == "true":
		verb = "LIST"
	case query.Has("watch"):
		verb = "WATCH"
	}

	r.mu.Lock()
	r.seen = append(r.seen, verb+" "+req.URL.Path+" "+query.Get("labelSelector")+suffix(query.Get("fieldSelector")))
	r.mu.Unlock()

	return r.next.RoundTrip(req)
}

func suffix(fields string) string {
	if fields == "" {
		return ""
	}

	return " " + fields
}

// since returns the requests after the first n.
func (r *requests) since(n int) []string {
	r.mu.Lock()
	defer r.mu.Unlock()

	return slices.Clone(r.seen[n:])
}

// allOf selects one namespace.
type allOf string

func (a allOf) Selects(_ context.Context, namespace string, _ labels.Selector) (bool, error) {
	return namespace == string(a), nil
}

// resting is an engine for the ConfigMaps of one namespace. Its requests are recorded, and time passes only when the
// test says so.
type resting struct {
	*testing.T
	*requests
	e        *Engine
	clock    *testclock.FakeClock
	plane    *localplane.Plane
	ns, ring string
}

func newResting(t *testing.T) *resting {
	t.Helper()

	plane := localplane.Shared(t)
	r := &resting{T: t, requests: &requests{}, plane: plane, ns: plane.Namespace(t),
		clock: testclock.NewFakeClock(time.Unix(1_000_000_000, 0))}
	r.ring = "rest-" + r.ns

	cfg := rest.CopyConfig(plane.Config)
	cfg.Wrap(func(rt http.RoundTripper) http.RoundTripper {
		r.next = rt
		return r.requests
	})

	httpClient, err := rest.HTTPClientFor(cfg)
	require.NoError(t, err)
	api, err := feed.Connect(cfg, httpClient, feed.Bounds{PerSecond: 10000, AtOnce: 64})
	require.NoError(t, err)

	r.e = New(Config{
		Ring: r.ring, Objects: feed.NewClient(api, contract.LabelKeysOf(r.ring, "")), Guard: takeover.New(r.ring,
			plane.Client, r.clock), Namespaces: allOf(r.ns),
		Limits: Limits{Workers: 2, Total: 10, PerShard: 5, DrainTimeout: time.Minute, Settle: time.Second}, Clock: r.clock,
		Changed: func() {},
		Late:    func(feed.ID, string, time.Duration) {},
	})

	return r
}

// run runs the engine until the test ends, and returns when the ring has converged.
func (r *resting) run() {
	r.Helper()

	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})

	go func() {
		defer close(ended)
		r.e.Run(ctx)
	}()

	r.Cleanup(func() {
		cancel()
		<-ended
	})
	r.settle()
}

// settle lets time pass until the ring has converged, because the settle period has to pass.
func (r *resting) settle() {
	r.Helper()
	r.eventually(func() bool {
		r.step()
		return r.e.Report().Converged
	})
}

// step lets a second pass, not faster than the API server answers: otherwise, its watches would seem to be silent.
func (r *resting) step() {
	require.NoError(r, r.plane.Client.Get(r.Context(), client.ObjectKey{Name: r.ns}, &corev1.Namespace{}))
	r.clock.Step(time.Second)
}

func (r *resting) eventually(condition func() bool) {
	r.Helper()
	require.Eventually(r, condition, time.Minute, 10*time.Millisecond)
}

// create creates an object of a shard, or without a shard if shard is "".
func (r *resting) create(name, shard string) *corev1.ConfigMap {
	r.Helper()

	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: r.ns, Name: name}}
	if shard != "" {
		cm.Labels = map[string]string{contract.ShardLabel(r.ring): shard}
	}

	require.NoError(r, r.plane.Client.Create(r.Context(), cm))

	return cm
}

// At rest, an engine sends only the requests of its audits, however many objects exist.
func TestAtRestNothingIsAskedButByTheAudit(t *testing.T) {
	r := newResting(t)
	for i := range 20 {
		r.create(fmt.Sprintf("at-rest-%d", i), "a")
	}

	r.e.SetTarget(target(r.ring))
	r.run()

	before := len(r.since(0))
	r.eventually(func() bool { // until an audit has ended; no time passes after it
		if r.passes(before) > 0 {
			return true
		}

		r.step()

		return false
	})
	r.eventually(func() bool { return r.e.Clock.Since(r.e.lastPass()) == 0 })

	before = len(r.since(0))

	for range 58 {
		r.clock.Step(time.Second)
	}

	// All requests that the steps have caused were sent before this object is labeled: it takes one patch and nothing
	// else.
	late := r.create("late", "")
	r.eventuallyAssigned(late)

	after := r.since(before)
	require.Len(t, after, 1, "no requests should be sent at rest")
	require.True(t, strings.HasPrefix(after[0], "PATCH"), after[0])

	for want := 1; want < 4; want++ {
		began := r.clock.Now()
		r.eventually(func() bool {
			r.step()
			return r.passes(before) == want
		})
		require.True(t, want == 1 || r.clock.Since(began) >= auditEvery-time.Second, "audits should not be more frequent")
	}
}

// lastPass returns when the last pass over all objects ended.
func (e *Engine) lastPass() time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()

	return e.passes.ended
}

// passes counts the passes over all labeled objects.
func (r *resting) passes(since int) int {
	return len(slices.DeleteFunc(r.since(since), func(request string) bool {
		return request != "LIST /api/v1/configmaps "+contract.ShardLabel(r.ring)
	}))
}

// Objects of shards that have lost no partitions are in their places. They are not visited to verify this immediately,
// because there may be very many. They are visited once when the shards have not changed for a while.
func TestDeathIsDealtWithWithoutALookAtAllObjects(t *testing.T) {
	r := newResting(t)
	all := target(r.ring)
	three := of(all, "a", "b", "c")

	for i := range 100 { // enough objects that some belong to a shard that joins, whatever the namespace is called
		name := fmt.Sprintf("at-rest-%d", i)
		owner, _ := three.View.Owner(key.Key{Kind: "ConfigMap", Namespace: r.ns, Name: name})

		if owner != "c" {
			r.create(name, owner)
		}
	}

	r.e.SetTarget(three)
	r.run()

	require.NotZero(t, r.passes(0), "nothing is known about the ring yet")

	before := len(r.since(0))
	r.e.SetTarget(of(all, "a", "b"))
	r.eventually(func() bool {
		return slices.ContainsFunc(r.since(before), func(s string) bool { return strings.HasSuffix(s, "notin (a,b)") })
	})
	require.Zero(t, r.passes(before), "only the objects without an available shard should be listed")
	require.False(t, r.e.Report().Converged)

	r.settle()
	require.Equal(t, 1, r.passes(before))

	before = len(r.since(0))
	r.e.SetTarget(of(all, "a", "b", "d"))
	r.eventually(func() bool { return r.e.Report().Misplaced+r.e.Report().Draining > 0 })
	require.Equal(t, 1, r.passes(before), "all shards lose partitions to a shard that joins")
}

// target returns a target of a ring of ConfigMaps, and the resources that they control.
func target(ring string, controlled ...string) *Target {
	return &Target{
		View:     viewOf(ring, "a"),
		Set:      resourcesOf(controlled...),
		Leaving:  map[schema.GroupResource]bool{},
		Selector: labels.Everything(),
	}
}

// viewOf returns the view of a ring with the given available shards. The Leases have no namespaces, so live Leases are
// used instead.
func viewOf(ring string, shards ...string) *membership.View {
	leases := make([]*coordinationv1.Lease, len(shards))
	for i, name := range shards {
		leases[i] = &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{contract.LabelClusterRing: ring}},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: &name},
		}
	}

	return membership.NewView(ring, leases, nil)
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

func TestLinesAreFew(t *testing.T) {
	now := time.Unix(1_000_000_000, 0)
	q := &sparseLog{}

	_, say := q.say(now)
	require.True(t, say)

	for range 3 {
		_, say = q.say(now.Add(time.Second))
		require.False(t, say)
	}

	others, say := q.say(now.Add(10 * time.Second))
	require.True(t, say)
	require.Equal(t, 3, others)
}

// After a disruption of all shards, the first shard that comes back would get all objects, and give them back when the
// others follow.
func TestFirstShardThatComesBackDoesNotGetEverything(t *testing.T) {
	r := newResting(t)
	all := target(r.ring)
	three := of(all, "a", "b", "c")

	for _, name := range three.View.AvailableShards() {
		s := &leasetest.Shard{Client: r.plane.Client, Ring: r.ring, Namespace: r.ns, Name: name}
		require.NoError(t, s.Acquire(t.Context()))
		require.NoError(t, s.Release(t.Context()))
	}

	var objects []*corev1.ConfigMap

	for i := range 12 {
		name := fmt.Sprintf("object-%d", i)
		owner, _ := three.View.Owner(key.Key{Kind: "ConfigMap", Namespace: r.ns, Name: name})
		objects = append(objects, r.create(name, owner))
	}

	at := func(name string) (n int) {
		for _, cm := range objects {
			require.NoError(t, r.plane.Client.Get(t.Context(), client.ObjectKeyFromObject(cm), cm))

			if cm.Labels[contract.ShardLabel(r.ring)] == name {
				n++
			}
		}

		return n
	}

	r.e.SetTarget(three)
	r.run()

	mine := at("a")
	r.e.SetTarget(of(all))
	r.e.SetTarget(of(all, "a"))
	r.eventually(func() bool { return r.e.Report().Blocked == len(objects)-mine })
	require.Contains(t, r.e.Report().BlockedExample, "1 of 3 shards have come back")
	require.Equal(t, mine, at("a"))

	r.e.SetTarget(three)
	r.settle()
	require.Equal(t, mine, at("a"), "no objects should have moved")

	r.e.SetTarget(of(all))
	r.e.SetTarget(of(all, "a"))
	r.eventually(func() bool { return r.e.Report().Blocked == len(objects)-mine })
	r.clock.Step(comeback)
	r.eventually(func() bool { return at("a") == len(objects) })
}

// When a shard is lost, the objects without an available shard are listed. Objects that the shard once had, and has no
// longer, cost nothing.
func TestPastOfALostShardCostsNoRequest(t *testing.T) {
	r := newResting(t)
	all := target(r.ring)
	two := of(all, "a", "b")

	b := &leasetest.Shard{Client: r.plane.Client, Ring: r.ring, Namespace: r.ns, Name: "b"}
	require.NoError(t, b.Acquire(t.Context()))
	require.NoError(t, b.Release(t.Context()))

	name := ""
	for owner := ""; owner != "b"; {
		name += "x"
		owner, _ = two.View.Owner(key.Key{Kind: "ConfigMap", Namespace: r.ns, Name: name})
	}

	r.e.SetTarget(two)
	r.run()
	r.settle()

	gone := r.create("gone", "b")
	require.NoError(t, r.plane.Client.Delete(t.Context(), gone))

	still := r.create(name, "b")

	before := len(r.since(0))
	r.e.SetTarget(of(all, "a"))
	r.eventuallyAssigned(still)
	r.settle()

	for _, request := range r.since(before) {
		require.False(t, strings.HasSuffix(strings.TrimSpace(request), "/gone"), request)
	}
}

// A label that names an available shard matches no watch, even if it is wrong. The audit finds and counts such objects.
func TestAuditRepairsLabelsThatNameLivingShards(t *testing.T) {
	for what, spoil := range map[string]func(w *meddled) (spoilt client.Object, shard string, drain bool){
		"an object restored from a backup": func(w *meddled) (client.Object, string, bool) {
			return w.owners("restored", "a", 1)[0], "a", true
		},
		"a child that was given to another owner": func(w *meddled) (client.Object, string, bool) {
			child, other := w.child(w.owner(w.namesAt(w.target, "a", "old", 1)[0], "a"), "child", "a"), w.owners("new",
				"b", 1)[0]
			w.rest()

			child.OwnerReferences = nil
			require.NoError(w, controllerutil.SetControllerReference(other, child, w.client.Scheme()))
			require.NoError(w, w.client.Update(w.Context(), child))

			return child, "b", false
		},
		"a child that was left behind": func(w *meddled) (client.Object, string, bool) {
			owner := w.owners("owner", "b", 1)[0]
			child := w.child(owner, "child", "b")
			w.rest()

			child.OwnerReferences = nil // what --cascade=orphan does
			require.NoError(w, w.client.Update(w.Context(), child))
			require.NoError(w, w.client.Delete(w.Context(), owner))

			return child, "", false
		},
		"a child that is elsewhere than its owner": func(w *meddled) (client.Object, string, bool) {
			return w.child(w.owners("owner", "b", 1)[0], "child", "a"), "b", false
		},
		"an object of a namespace that is not selected": func(w *meddled) (client.Object, string, bool) {
			ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "elsewhere-"}}
			require.NoError(w, w.client.Create(w.Context(), ns))

			cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns.Name, Name: "copied", Labels: w.at("a")}}
			require.NoError(w, w.client.Create(w.Context(), cm))

			return cm, "a", true
		},
	} {
		t.Run(what, func(t *testing.T) {
			w := newMeddled(t, byHand)
			w.e.SetTarget(w.target)
			w.run()
			w.rest()

			o, shard, drain := spoil(w)
			require.Zero(t, w.audited())
			w.goesBy(int(auditEvery.Seconds()))
			w.comes(o, shard, drain)
			require.InDelta(t, 1, w.audited(), 0)

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
	w := newMeddled(t, byHand)
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
func (w *meddled) rest() {
	w.Helper()
	w.converges()

	ended := func() time.Time {
		w.e.mu.Lock()
		defer w.e.mu.Unlock()

		return w.e.passes.ended
	}
	before := ended()

	w.eventually(func() bool {
		w.goesBy(1)
		return ended().After(before)
	}, "an audit should run once a minute")
	w.converges()
}

// audited returns the number of misplaced objects that the audit has found.
func (w *meddled) audited() (n float64) {
	w.Helper()

	measured(w.T, w.ring, "clusterring_rebalancer_audit_found_total", func(value float64) { n += value })

	return n
}
