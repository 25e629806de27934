package takeover

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/services/internal/lease"
	"github.com/clusterring/clusterring/tools/testkit/leasetest"
)

// d is the duration of the shard's Lease in these tests.
const d = 10 * time.Second

// left asks about shard a, and returns for how long moves are certainly safe.
func (w *world) left() time.Duration {
	w.Helper()

	v := w.ask("a")
	require.True(w, v.Allowed, v.Reason)

	return v.Until.Sub(w.clock.Now())
}

// edit changes the shard's Lease on the API server.
func (w *world) edit(s *leasetest.Shard, change func(*coordinationv1.Lease)) {
	w.Helper()

	l, err := s.Lease(w.Context())
	require.NoError(w, err)
	change(l)
	require.NoError(w, w.plane.Client.Update(w.Context(), l))
}

// says makes the shard announce its hold-off.
func (w *world) says(s *leasetest.Shard, holdOff string) {
	w.Helper()
	w.edit(s, func(l *coordinationv1.Lease) {
		metav1.SetMetaDataAnnotation(&l.ObjectMeta, contract.AnnotationHoldOff, holdOff)
	})
}

// take takes the shard's Lease like the lease monitor; renew keeps it.
func (w *world) take(s *leasetest.Shard) {
	w.Helper()
	w.edit(s, func(l *coordinationv1.Lease) { *l = *lease.Acquired(l, d, w.clock.Now()) })
}

func (w *world) renew(s *leasetest.Shard) {
	w.Helper()
	w.edit(s, func(l *coordinationv1.Lease) { *l = *lease.Renewed(l, w.clock.Now()) })
}

func TestFreeLeaseAllowsForTheHoldOff(t *testing.T) {
	for says, want := range map[string]time.Duration{
		"":        time.Second,
		"2s":      1500 * time.Millisecond,
		"1m0.5s":  time.Minute - 500*time.Millisecond,
		"10m":     time.Minute - 500*time.Millisecond,
		"-1s":     time.Second,
		"quickly": time.Second,
	} {
		t.Run(says, func(t *testing.T) {
			w := newWorld(t)
			a := w.shard()
			require.NoError(t, a.Acquire(t.Context()))

			if says != "" {
				w.says(a, says)
			}
			require.NoError(t, a.Release(t.Context()))
			require.Equal(t, want, w.left())

			// The same answer is valid for a moment, and what it allows counts from the read.
			w.step(100 * time.Millisecond)
			require.Equal(t, want-100*time.Millisecond, w.left())
			w.step(trust)
			require.Equal(t, want, w.left())
		})
	}
}

func TestShardWithoutHoldOffIsNotTakenFrom(t *testing.T) {
	w := newWorld(t)
	a := w.shard()
	require.NoError(t, a.Acquire(t.Context()))
	w.says(a, "0s")
	require.NoError(t, a.Release(t.Context()))

	v := w.ask("a")
	require.False(t, v.Allowed)
	require.Positive(t, v.RetryAfter)

	w.take(a)
	w.step(time.Second)
	require.Equal(t, 2*d-time.Second, w.left(), "unless the lease monitor keeps its Lease")
}

// A slow read allows little, and a read slower than the hold-off allows nothing.
func TestUntilCountsFromTheBeginningOfTheRead(t *testing.T) {
	w := newWorld(t)
	a := w.shard()
	require.NoError(t, a.Acquire(t.Context()))
	require.NoError(t, a.Release(t.Context()))

	took := 400 * time.Millisecond
	takes := func(bool) error { w.step(took); return nil }

	w.reads(takes)
	require.Equal(t, 600*time.Millisecond, w.left())

	took = time.Second

	w.reads(takes)
	require.False(t, w.ask("a").Allowed)
}

func TestTakenLeaseAllowsForItsDuration(t *testing.T) {
	for says, want := range map[string]time.Duration{
		"2s": 2*d + 1500*time.Millisecond, // as the Lease announces
		"":   d + time.Second,             // a library that waits for its own duration
	} {
		t.Run("says "+says, func(t *testing.T) {
			w := newWorld(t)
			a := w.shard()
			require.NoError(t, a.Acquire(t.Context()))

			if says != "" {
				w.says(a, says)
			}
			w.observe()
			w.take(a)
			w.observe()

			free := w.left()
			require.Less(t, free, 2*time.Second, "it may have been taken long ago")
			w.step(time.Second)
			require.Equal(t, free, w.left())

			w.renew(a)
			w.step(3 * time.Second)
			require.Equal(t, want-3*time.Second, w.left(), "it was renewed after the read that showed it as it was before")
			w.step(time.Second)
			require.Equal(t, want-4*time.Second, w.left(), "and is not renewed by being read")

			w.renew(a)
			w.step(time.Second)
			require.Equal(t, want-time.Second, w.left())

			for range 40 {
				w.step(time.Second)
				require.LessOrEqual(t, w.left(), max(want-2*time.Second, free))
			}
			require.Equal(t, free, w.left(), "it is as good as free")
		})
	}
}

// A cache may be arbitrarily late: that it showed the Lease held a moment ago does not tell when the Lease was taken.
func TestCacheDoesNotTellWhenALeaseWasTaken(t *testing.T) {
	w := newWorld(t)
	a := w.shard()
	require.NoError(t, a.Acquire(t.Context()))
	w.says(a, "2s")
	w.observe()
	w.take(a)
	require.Equal(t, 1500*time.Millisecond, w.left())
}

// If a live read saw the Lease held, it was certainly taken after that read began. The lease monitor keeps the
// annotation of a Lease, but somebody may have removed it.
func TestLastHoldOffThatWasSaidCounts(t *testing.T) {
	w := newWorld(t)
	a := w.shard()
	require.NoError(t, a.Acquire(t.Context()))
	w.says(a, "30s")
	require.False(t, w.ask("a").Allowed)
	w.take(a)
	w.edit(a, func(l *coordinationv1.Lease) { l.Annotations = nil })
	w.step(time.Second)
	require.Equal(t, 2*d+29500*time.Millisecond-time.Second, w.left())

	w.edit(a, func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = nil })
	w.step(time.Second)
	require.Equal(t, time.Second, w.left(), "a free Lease may be taken by one that does not say it")
}

// Two concurrent reads may have been executed in any order.
func TestReadsAtTheSameTimeDoNotTellWhenALeaseWasTaken(t *testing.T) {
	begin := time.Unix(1_000_000_000, 0)
	at := func(began, ended time.Duration) span { return span{begin.Add(began), begin.Add(ended)} }
	taken := func(renewed int) []coordinationv1.Lease {
		l := coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
		l = *lease.Acquired(&l, d, begin)
		l.Spec.RenewTime = new(metav1.NewMicroTime(begin.Add(time.Duration(renewed))))

		return []coordinationv1.Lease{l}
	}

	var s shard

	s.answer("a", taken(2), at(0, 2*time.Second))
	s.answer("a", taken(1), at(time.Second, 1900*time.Millisecond))
	require.Equal(t, begin.Add(2*time.Second), s.verdict.Until)
	s.answer("a", taken(2), at(2*time.Second, 2*time.Second))
	require.Equal(t, begin.Add(time.Second+d+silentHoldOff), s.verdict.Until, "but this one is later")
}

func TestNamesakesAllowNoMoreThanTheLeastOfThem(t *testing.T) {
	w := newWorld(t)
	a := w.shard()
	require.NoError(t, a.Acquire(t.Context()))
	w.says(a, "30s")
	b := w.shard()
	b.Namespace = w.plane.Namespace(t)
	require.NoError(t, b.Acquire(t.Context()))
	require.False(t, w.ask("a").Allowed)
	w.take(a)
	require.NoError(t, b.Release(t.Context()))
	w.step(time.Second)
	require.Equal(t, time.Second, w.left())
}

// One Lease with a duration of a day must not block moves of objects of unknown shards for two days.
func TestWaitIsBounded(t *testing.T) {
	w := newWorld(t)
	a := w.shard()
	a.Duration = 24 * time.Hour
	require.NoError(t, a.Acquire(t.Context()))
	w.observe()
	require.Equal(t, 5*time.Minute, w.ask("unknown").RetryAfter)
	w.step(5 * time.Minute)
	require.True(t, w.ask("unknown").Allowed)

	require.NoError(t, a.Delete(t.Context()))
	w.observe()
	require.Equal(t, 5*time.Minute, w.ask("a").RetryAfter)
}

func TestShardWhoseLeaseWasJustDeletedMayComeBack(t *testing.T) {
	w := newWorld(t)
	s := w.shard()
	require.NoError(t, s.Acquire(t.Context()))
	require.NoError(t, s.Release(t.Context()))
	require.Equal(t, silentHoldOff, w.left())
	require.NoError(t, s.Delete(t.Context()))
	w.step(time.Second)
	require.Equal(t, silentHoldOff, w.left(), "it held its Lease a moment ago")
	w.step(longestWait)
	require.Equal(t, longGone, w.left())
}

// A shard that holds its Lease keeps what it watches. Nothing but its Lease, as it is now, says what it does not watch.
func TestObjectsThatTheirShardDoesNotWatch(t *testing.T) {
	w := newWorld(t)
	a := w.shard()
	in := func(namespace string) Verdict {
		t.Helper()

		v, err := w.guard.MayTakeIn(t.Context(), "a", namespace)
		require.NoError(t, err)

		return v
	}

	require.NoError(t, a.Acquire(t.Context()))
	w.observe()
	require.False(t, in("other").Allowed, "it watches all")

	a.Namespaces = []string{"mine", "too"}
	require.NoError(t, a.Renew(t.Context()))

	v := in("other")
	require.True(t, v.Allowed)
	require.Equal(t, 1500*time.Millisecond, v.Until.Sub(w.clock.Now()),
		"another process may take the Lease now, and work after the hold-off")
	require.False(t, in("mine").Allowed)
	require.False(t, in("too").Allowed)
	require.False(t, w.ask("a").Allowed, "not for all objects")

	w.says(a, "100ms")
	require.False(t, in("other").Allowed, "the hold-off is too short for a write")

	w.edit(a, func(l *coordinationv1.Lease) {
		l.Annotations[contract.AnnotationHoldOff] = "2s"
		l.Spec.RenewTime = &metav1.MicroTime{Time: l.Spec.RenewTime.Add(time.Second)}
	})
	require.False(t, in("other").Allowed, "a process that does not know the annotation has renewed the Lease")

	require.NoError(t, a.Release(t.Context()))
	require.True(t, in("other").Allowed)
	require.True(t, in("mine").Allowed, "like any released Lease")
}
