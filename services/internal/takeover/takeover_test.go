package takeover

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/tools/testkit/leasetest"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

func TestMain(m *testing.M) { os.Exit(localplane.Main(m, v1alpha1.AddToScheme)) }

// world is a guard with its own clock in front of the real API server.
type world struct {
	*testing.T
	plane *localplane.Plane
	ring  string
	ns    string
	clock *testclock.FakePassiveClock
	guard *Guard
	from  membership.Namespaces
}

func newWorld(t *testing.T) *world {
	t.Helper()

	plane := localplane.Shared(t)
	ns := plane.Namespace(t)
	clk := testclock.NewFakePassiveClock(time.Unix(1_000_000_000, 0))

	return &world{T: t, plane: plane, ring: ns, ns: ns, clock: clk, guard: New(ns, plane.Client, clk)}
}

func (w *world) shard() *leasetest.Shard {
	return &leasetest.Shard{Client: w.plane.Client, Ring: w.ring, Namespace: w.ns, Name: "a", Duration: 10 * time.Second}
}

// released returns a shard that has held its Lease and released it.
func (w *world) released() *leasetest.Shard {
	w.Helper()

	a := w.shard()
	require.NoError(w, a.Acquire(w.Context()))
	require.NoError(w, a.Release(w.Context()))

	return a
}

// many creates the Leases of n shards, of which the first ones are held and the others released, and returns their
// names.
func (w *world) many(n, held int) (names []string) {
	w.Helper()

	for i := range n {
		s := w.shard()
		s.Name = fmt.Sprintf("many-%d", i)
		names = append(names, s.Name)
		require.NoError(w, s.Acquire(w.Context()))

		if i >= held {
			require.NoError(w, s.Release(w.Context()))
		}
	}

	return names
}

// observe shows the guard the current Leases, as a cache would. It returns the result of the guard.
func (w *world) observe() (released []string) {
	w.Helper()

	var list coordinationv1.LeaseList
	require.NoError(w, w.plane.Client.List(w.Context(), &list, client.MatchingLabels{contract.LabelClusterRing: w.ring}))

	var leases []*coordinationv1.Lease
	for i := range list.Items {
		leases = append(leases, &list.Items[i])
	}

	return w.guard.Observe(membership.Rules{Namespaces: w.from}.View(w.ring, leases, nil))
}

func (w *world) ask(shard string) Verdict {
	w.Helper()

	v, err := w.guard.MayTake(w.Context(), shard)
	require.NoError(w, err)

	return v
}

// keeps expects that shard a, whose Lease was deleted, keeps its objects for exactly twice the duration of the Lease.
func (w *world) keeps() {
	w.Helper()

	const d = 20 * time.Second

	require.Equal(w, d, w.ask("a").RetryAfter)
	w.step(d - time.Millisecond)

	v := w.ask("a")
	require.False(w, v.Allowed)
	require.Contains(w, v.Reason, "deleted")

	w.step(time.Millisecond)
	require.True(w, w.ask("a").Allowed)
}

// slowly makes the guard read as slowly as the test wants, and returns how to ask it from another goroutine.
func (w *world) slowly() (slow *slowReader, ask func() <-chan bool) {
	slow = &slowReader{Reader: w.plane.Client, begins: make(chan struct{}), goOn: make(chan struct{})}
	w.guard = New(w.ring, slow, w.clock)

	return slow, func() <-chan bool {
		allowed := make(chan bool, 1)

		go func() {
			v, err := w.guard.MayTake(w.Context(), "a")
			allowed <- v.Allowed && err == nil
		}()

		return allowed
	}
}

func (w *world) step(d time.Duration) { w.clock.SetTime(w.clock.Now().Add(d)) }

func TestHeldLeaseIsNeverTaken(t *testing.T) {
	w := newWorld(t)
	a := w.released()

	w.observe() // the cache shows the Lease as released

	require.NoError(t, a.Acquire(t.Context())) // and does not show that it was taken back
	require.False(t, w.ask("a").Allowed)

	w.step(24 * time.Hour)
	require.False(t, w.ask("a").Allowed, "no time is long enough")
}

// An answer ends when the Lease is seen to be held again, even if only the cache shows it.
func TestAnswerEndsWhenTheCacheShowsTheLeaseHeld(t *testing.T) {
	w := newWorld(t)
	a := w.released()

	require.True(t, w.ask("a").Allowed)

	require.NoError(t, a.Acquire(t.Context()))
	require.True(t, w.ask("a").Allowed)
	w.observe()
	require.False(t, w.ask("a").Allowed)
}

// An answer that is renewed in time delays nobody, and a new answer counts from when it arrives.
func TestAnswerIsGoodWhileItIsRenewed(t *testing.T) {
	w := newWorld(t)
	a := w.released()

	slow, ask := w.slowly()

	first := ask()
	<-slow.begins
	slow.goOn <- struct{}{}
	require.True(t, <-first)

	w.step(trust / 2)

	second := ask()
	<-slow.begins
	require.True(t, <-ask(), "nobody waits for the second read")

	w.step(trust / 2)

	waits := ask() // until the second read ends, because the first answer is too old

	require.NoError(t, a.Acquire(t.Context()))
	slow.goOn <- struct{}{}
	require.False(t, <-second)
	<-slow.begins
	slow.goOn <- struct{}{}
	require.False(t, <-waits)
}

// A caller that shares the read of another waits no longer than its context allows.
func TestNobodyWaitsForTheReadOfAnotherBeyondItsTime(t *testing.T) {
	w := newWorld(t)
	slow, ask := w.slowly()

	first := ask()
	<-slow.begins

	ctx, cancel := context.WithCancel(t.Context())
	cancel()

	_, err := w.guard.MayTake(ctx, "a")
	require.ErrorIs(t, err, context.Canceled)

	slow.goOn <- struct{}{}
	<-first
}

func TestDeletedLeaseOfHolderHoldsForTwiceItsDuration(t *testing.T) {
	w := newWorld(t)
	a := w.shard()

	require.NoError(t, a.Acquire(t.Context()))
	w.observe()
	w.step(time.Hour)
	require.NoError(t, a.Delete(t.Context()))
	w.observe()

	w.keeps()
}

func TestLeaseThatComesBackStartsAnew(t *testing.T) {
	w := newWorld(t)
	a := w.shard()

	require.NoError(t, a.Acquire(t.Context()))
	w.observe()
	require.NoError(t, a.Delete(t.Context()))
	w.observe()
	w.step(15 * time.Second)
	require.NoError(t, a.Acquire(t.Context()))
	w.observe()
	require.NoError(t, a.Delete(t.Context()))
	w.observe()
	w.step(15 * time.Second)
	require.False(t, w.ask("a").Allowed)
}

// Another Lease of the name, which nobody holds, proves nothing about the process whose Lease was deleted.
func TestDeletedLeaseCountsBesideAnother(t *testing.T) {
	for what, seen := range map[string]func(w *world){
		"both seen by the cache": func(w *world) { w.observe() },
		"both seen live":         func(w *world) { w.ask("a") },
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t)
			a, namesake := w.shard(), w.shard()
			namesake.Namespace = w.plane.Namespace(t)

			require.NoError(t, namesake.Acquire(t.Context()))
			require.NoError(t, namesake.Release(t.Context()))
			require.NoError(t, a.Acquire(t.Context()))
			seen(w)
			require.NoError(t, a.Delete(t.Context()))

			w.keeps()
		})
	}
}

// Neither does a Lease that somebody has created in its place.
func TestDeletedLeaseCountsBesideOneMadeSince(t *testing.T) {
	w := newWorld(t)
	a := w.shard()

	require.NoError(t, a.Acquire(t.Context()))
	w.observe()
	require.NoError(t, a.Delete(t.Context()))
	require.NoError(t, w.plane.Client.Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Namespace: w.ns, Name: "a", Labels: map[string]string{contract.LabelClusterRing: w.ring},
	}}))
	w.observe()
	w.keeps()
}

// An object that was restored from a backup may carry the label of a shard that nobody has ever seen.
func TestUnknownShardCountsFromTheBeginning(t *testing.T) {
	w := newWorld(t)

	require.Equal(t, 30*time.Second, w.ask("unknown").RetryAfter, "the guard has just begun to watch")
	w.step(30 * time.Second)
	require.Equal(t, longGone, w.ask("unknown").Until.Sub(w.clock.Now()))
	require.True(t, w.ask("another").Allowed, "a guard that has watched for long knows at once")
}

// When a third of a thousand shards has died, a read per shard would send thousands of requests per second to the API
// server.
func TestOneReadServesManyShards(t *testing.T) {
	w := newWorld(t)
	counted := w.reads(nil)
	names := w.many(5*few, 1)

	w.observe()

	all := func() {
		t.Helper()

		for _, name := range names[1:] {
			require.True(t, w.ask(name).Allowed, name)
		}
	}

	all()
	require.Equal(t, few+1, counted.lists, "a few by themselves, the others together")

	w.step(trust)
	all()
	require.Equal(t, few+2, counted.lists, "all together")
	require.False(t, counted.one)
	require.False(t, w.ask(names[0]).Allowed, "which does not make those dead that live")

	// What is read together is judged like what is read alone.
	a := w.shard()
	a.Name = names[0]
	require.NoError(t, a.Delete(t.Context()))
	w.step(lately / 2)
	all()
	require.Equal(t, 2*a.Duration, w.ask(names[0]).RetryAfter)

	b := w.shard()
	b.Name = names[1]
	require.NoError(t, b.Acquire(t.Context()))
	w.step(trust)
	require.False(t, w.ask(names[1]).Allowed)

	w.step(lately)

	before := counted.lists

	require.True(t, w.ask(names[2]).Allowed)
	require.Equal(t, before+1, counted.lists)
	require.True(t, counted.one, "nobody asks about the others any more")
}

// A read of one shard may be slower than a read of all shards that began after it.
func TestLaterReadCounts(t *testing.T) {
	earlier := time.Unix(1_000_000_000, 0)
	lease := func(holder string) []coordinationv1.Lease {
		return []coordinationv1.Lease{{
			ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder},
		}}
	}

	var s shard

	at := func(since time.Duration) span { return span{earlier.Add(since), earlier.Add(since)} }

	s.answer("a", lease("a"), at(time.Millisecond))
	require.False(t, s.verdict.Allowed)
	s.answer("a", lease("nobody"), at(0))
	require.False(t, s.verdict.Allowed)
	require.Zero(t, s.allowedTill)
	s.answer("a", lease("nobody"), at(time.Second))
	require.True(t, s.verdict.Allowed)
}

// A name that is held twice is not available, and may stay so for days.
func TestShardThatGoesOnHoldingItsLeaseIsAskedAboutMoreAndMoreSeldom(t *testing.T) {
	w := newWorld(t)
	a := w.shard()

	require.NoError(t, a.Acquire(t.Context()))
	require.Empty(t, w.observe())

	var pauses []time.Duration

	for range 8 {
		v := w.ask("a")
		require.False(t, v.Allowed)

		pauses = append(pauses, v.RetryAfter)
		w.step(v.RetryAfter)
	}

	s := time.Second
	require.Equal(t, []time.Duration{s, s, 2 * s, 4 * s, 8 * s, 16 * s, 30 * s, 30 * s}, pauses)

	require.NoError(t, a.Release(t.Context()))
	require.Equal(t, []string{"a"}, w.observe(), "everyone who waits for it need not wait for that long")
	require.Empty(t, w.observe())
	require.True(t, w.ask("a").Allowed)

	require.NoError(t, a.Acquire(t.Context()))
	w.step(time.Minute)
	require.Equal(t, s, w.ask("a").RetryAfter, "it begins anew")
}

// A shard beyond the limit of a ring is not available, but it may have objects from the time before. It gives them up
// itself.
func TestShardBeyondTheLimitKeepsItsObjects(t *testing.T) {
	w := newWorld(t)
	a := w.shard()
	require.NoError(t, a.Acquire(t.Context()))

	var list coordinationv1.LeaseList
	require.NoError(t, w.plane.Client.List(t.Context(), &list, client.InNamespace(w.ns)))
	require.Len(t, list.Items, 1)

	leases := []*coordinationv1.Lease{&list.Items[0]}

	for i := range membership.MaxShards {
		older := list.Items[0].DeepCopy()
		older.Name = fmt.Sprintf("older-%d", i)
		older.Spec.HolderIdentity = &older.Name
		older.CreationTimestamp.Time = older.CreationTimestamp.Add(-time.Hour)
		leases = append(leases, older)
	}

	view := membership.Rules{Namespaces: w.from}.View(w.ring, leases, nil)
	require.False(t, view.Available("a"))
	require.Empty(t, w.guard.Observe(view), "it has not released its Lease")
	require.False(t, w.ask("a").Allowed)
	w.step(longestWait + time.Minute)
	w.guard.Observe(view)
	require.False(t, w.ask("a").Allowed)
}

// When a third of a thousand shards has died, a busy API server takes long to list all Leases. If each shard were then
// read by itself, the API server would scan a thousand Leases hundreds of times per second, and become slower and
// slower.
func TestSlowReadsOfAllShardsServeForLonger(t *testing.T) {
	w := newWorld(t)
	late := w.late(2*trust, nil)
	names := w.dead(2 * few)

	w.observe()

	reads := func() int {
		t.Helper()

		before := late.lists

		for _, name := range names {
			require.True(t, w.ask(name).Allowed, name)
		}

		return late.lists - before
	}

	require.Equal(t, few+1, reads(), "a few by themselves, the others together")

	w.step(2*trust - 1)
	require.Zero(t, reads(), "the answer is good for twice as long as the read took")
	w.step(1)
	require.Equal(t, 1, reads(), "and then renewed for all together")
	require.Equal(t, 2, late.all)
}

// dead creates the Leases of n shards, which have been taken, and returns their names.
func (w *world) dead(n int) (names []string) {
	w.Helper()

	for i := range n {
		s := w.shard()
		s.Name = fmt.Sprintf("dead-%d", i)
		names = append(names, s.Name)

		require.NoError(w, s.Acquire(w.Context()))
		w.says(s, "10s")
		w.take(s)
	}

	return names
}

// The Leases of a ring may be so large that what a read of all shards allows is over when it ends, or so slow to read
// that it fails, or that only those can use it who have waited for it. Then each shard is read by itself for a while.
// As long as a read of all allows something, it is better: everyone who has waited for it can use that.
func TestShardsAreReadOneByOneWhileTheReadOfAllIsSlow(t *testing.T) {
	for name, tc := range map[string]struct {
		took     time.Duration
		err      error
		taken    bool // whether the Leases were taken, and announce a hold-off of 10 s; otherwise, they were released
		together bool
	}{
		"what it allows is over":    {took: silentHoldOff},
		"it takes too long":         {took: longestTrust, taken: true},
		"it fails after long":       {took: longestTrust, taken: true, err: context.DeadlineExceeded},
		"it allows something still": {took: silentHoldOff - 1, together: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			late := w.late(tc.took, tc.err)

			var names []string
			if tc.taken {
				names = w.dead(2 * few)
			} else {
				names = w.many(2*few, 0)
			}

			w.observe()

			all := func() (allowed int) {
				for _, name := range names {
					v, err := w.guard.MayTake(t.Context(), name)
					if err != nil {
						require.ErrorIs(t, err, tc.err)
					} else if v.Allowed {
						allowed++
					}
				}

				return allowed
			}

			for range 2 * tooLate {
				require.True(t, all() == len(names) || !tc.together)
			}

			require.Equal(t, len(names), all())

			if tc.together {
				require.GreaterOrEqual(t, late.all, 2*tooLate)
				return
			}

			require.Equal(t, tooLate, late.all, "after that, each shard by itself")
			w.step(slowly)
			all()
			all()
			require.Equal(t, tooLate+1, late.all, "another attempt to read all")
		})
	}
}

// A Lease in a namespace that does not count keeps no object from moving, whatever it says.
func TestLeaseThatDoesNotCountHoldsNothing(t *testing.T) {
	for what, many := range map[string]bool{"one shard is read": false, "all shards are read": true} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t)
			w.from = []string{w.ns}
			a, namesake := w.shard(), w.shard()
			namesake.Namespace, namesake.Duration = w.plane.Namespace(t), 24*time.Hour

			require.NoError(t, a.Acquire(t.Context()))
			require.NoError(t, a.Release(t.Context()))
			require.NoError(t, namesake.Acquire(t.Context()))
			w.observe()

			if many {
				for _, other := range []string{"b", "c", "d", "e", "f"} {
					w.ask(other)
				}
			}

			require.True(t, w.ask("a").Allowed)

			require.NoError(t, a.Acquire(t.Context()))
			w.step(trust)
			require.False(t, w.ask("a").Allowed, "the one that counts is held")
		})
	}
}

// The process of a shard whose namespace no longer counts may still work, like one whose Lease was deleted.
func TestShardOfANamespaceThatNoLongerCountsKeepsItsObjectsForAWhile(t *testing.T) {
	w := newWorld(t)
	a := w.shard()

	require.NoError(t, a.Acquire(t.Context()))
	w.observe()

	w.from = []string{"elsewhere"}
	w.observe()
	w.keeps()
}

// Users may label objects with names that no shard ever had, as many as they like.
func TestMadeUpNamesAreForgotten(t *testing.T) {
	w := newWorld(t)
	a := w.released()

	w.observe()
	w.step(30 * time.Second)

	for i := range 3 * manyStrangers {
		require.True(t, w.ask(fmt.Sprint("made-up-", i)).Allowed)
		require.LessOrEqual(t, len(w.guard.shards), manyStrangers+1)
	}

	require.Contains(t, w.guard.shards, a.Name, "it has a Lease")
	require.NoError(t, a.Acquire(t.Context()))
	w.observe()
	require.NoError(t, a.Delete(t.Context()))
	w.step(time.Second)
	require.False(t, w.ask(a.Name).Allowed)
}

// reader counts the lists that go to the API server.
type reader struct {
	client.Reader

	after func(one bool) error // called after each list, if not nil; its error is that of the list
	lists int
	all   int  // the lists of all shards
	one   bool // whether the last list was of a single shard
}

// reads makes the guard read through a reader that calls the function after each list.
func (w *world) reads(after func(one bool) error) *reader {
	r := &reader{Reader: w.plane.Client, after: after}
	w.guard = New(w.ring, r, w.clock)

	return r
}

// late makes each read of all shards take that long, and end with the error.
func (w *world) late(took time.Duration, err error) *reader {
	return w.reads(func(one bool) error {
		if one {
			return nil
		}

		w.step(took)

		return err
	})
}

func (r *reader) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	r.one = slices.ContainsFunc(opts, func(o client.ListOption) bool { _, ok := o.(client.MatchingFields); return ok })
	if r.lists++; !r.one {
		r.all++
	}

	err := r.Reader.List(ctx, list, opts...)
	if r.after != nil {
		err = errors.Join(err, r.after(r.one))
	}

	return err
}

// slowReader reports when a list begins, and then waits.
type slowReader struct {
	client.Reader

	begins, goOn chan struct{}
}

func (s *slowReader) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	s.begins <- struct{}{}
	<-s.goOn

	return s.Reader.List(ctx, list, opts...)
}
