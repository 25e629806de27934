package lease_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/clusterring/clusterring/services/internal/lease"
)

func TestSightBeginsWithTheFirstLook(t *testing.T) {
	var s lease.Sight

	now := monday.Time
	_, sees := s.Since(lease.DefaultDuration, now)
	require.False(t, sees)

	require.True(t, s.Saw(now, now.Add(time.Second)))
	since, sees := s.Since(lease.DefaultDuration, now.Add(time.Second))
	require.True(t, sees)
	require.Equal(t, now.Add(time.Second), since, "what the first look has not shown may have happened before its end")

	var all *lease.Sight
	require.False(t, all.Saw(now, now))
	_, sees = all.Since(0, now)
	require.True(t, sees, "no sight, no limit")
}

// The gap counts from the beginning of one look to the end of the next, because the looks may have been that far apart.
func TestSightEndsWithAGap(t *testing.T) {
	for _, tc := range []struct{ d, gap time.Duration }{
		{time.Second, 3 * time.Second},
		{10*time.Second - 1, 3 * time.Second},
		{10 * time.Second, 5 * time.Second},
		{20*time.Second - 1, 5 * time.Second},
		{20 * time.Second, 10 * time.Second},
		{time.Hour, 10 * time.Second},
	} {
		var s lease.Sight

		begin := monday.Time
		s.Saw(begin, begin)

		_, sees := s.Since(tc.d, begin.Add(tc.gap))
		require.True(t, sees, "%+v", tc)
		_, sees = s.Since(tc.d, begin.Add(tc.gap+1))
		require.False(t, sees, "%+v", tc)

		next := begin.Add(tc.gap)
		s.Saw(begin.Add(time.Second), next)
		since, _ := s.Since(tc.d, next)
		require.Equal(t, begin, since, "%+v: not longer than the gap", tc)

		next = begin.Add(time.Second + tc.gap + 1)
		require.True(t, s.Saw(begin.Add(2*time.Second), next))
		since, sees = s.Since(tc.d, next)
		require.Equal(t, next, since, "%+v: longer", tc)
		require.Equal(t, tc.gap >= next.Sub(begin.Add(2*time.Second)), sees)
	}
}

// A process that is frozen during a look gets the answer when it wakes up.
func TestFrozenLookIsAGap(t *testing.T) {
	var s lease.Sight
	s.Saw(monday.Time, monday.Time)
	woken := monday.Add(time.Minute)
	require.True(t, s.Saw(monday.Add(time.Second), woken))
	_, sees := s.Since(lease.DefaultDuration, woken)
	require.False(t, sees, "what the look has shown is a minute old")

	s.Saw(woken, woken)
	since, sees := s.Since(lease.DefaultDuration, woken)
	require.True(t, sees)
	require.Equal(t, woken, since)
}

// Looks of several goroutines end in any order.
func TestLateLookChangesNothing(t *testing.T) {
	var s lease.Sight
	s.Saw(monday.Time, monday.Time)
	s.Saw(monday.Add(2*time.Second), monday.Add(2*time.Second))
	s.Saw(monday.Add(time.Second), monday.Add(3*time.Second))
	since, sees := s.Since(lease.DefaultDuration, monday.Add(7*time.Second))
	require.True(t, sees)
	require.Equal(t, monday.Time, since)
}

func TestKeptIsSinceTheHolderChanged(t *testing.T) {
	var o lease.Observer

	taken := lease.Record{Holder: "shardlease-controller", AcquireTime: monday.Time, RenewTime: monday.Time}
	o.Look(here, lease.Record{Holder: shard, Duration: 20 * time.Second}, monday.Time)
	require.Equal(t, lease.Seen{Own: 20 * time.Second}, o.Look(here, taken, monday.Time))
	taken.RenewTime = monday.Add(time.Second)
	require.Equal(t, time.Minute, o.Look(here, taken, monday.Add(time.Minute)).Kept)
	taken.AcquireTime = monday.Add(time.Second)
	require.Zero(t, o.Look(here, taken, monday.Add(time.Minute)).Kept, "taken again")
}

func TestTogether(t *testing.T) {
	const d = 10 * time.Second

	held := func(age time.Duration) lease.Observed {
		return lease.Observed{Snapshot: lease.Snapshot{Shard: shard, Record: lease.Record{Holder: shard, Duration: d}},
			Age: age}
	}
	taken := func(kept time.Duration) lease.Observed {
		return lease.Observed{Snapshot: lease.Snapshot{
			Shard: shard, Record: lease.Record{Holder: "shardlease-controller", Duration: 2 * d}, Kept: kept,
		}}
	}
	released := lease.Observed{Snapshot: lease.Snapshot{Shard: shard}, Age: time.Hour}

	for name, tc := range map[string]struct {
		shards   []lease.Observed
		together bool
	}{
		"none":                       {nil, false},
		"one of one":                 {[]lease.Observed{held(2 * d)}, false},
		"one of two":                 {[]lease.Observed{held(2 * d), held(0)}, false},
		"two of two":                 {[]lease.Observed{held(2 * d), held(d)}, true},
		"two of two, one not yet":    {[]lease.Observed{held(2 * d), held(d - 1)}, false},
		"two of three":               {[]lease.Observed{held(2 * d), held(d), held(0)}, true},
		"two of four":                {[]lease.Observed{held(2 * d), held(d), held(0), held(0)}, false},
		"three of five":              {[]lease.Observed{held(2 * d), held(d), held(d), held(0), held(0)}, true},
		"one, the other just taken":  {[]lease.Observed{held(2 * d), taken(d - 1), held(0)}, true},
		"one, the other taken early": {[]lease.Observed{held(2 * d), taken(d), held(0)}, false},
		"one, the others released":   {[]lease.Observed{held(2 * d), released, released}, false},
	} {
		_, _, together := lease.Together(tc.shards)
		require.Equal(t, tc.together, together, name)
	}
}

func TestShortLeasesNeedMoreLooks(t *testing.T) {
	var s lease.Sight
	s.Since(10*time.Second, monday.Time)
	require.Equal(t, 2*time.Second, s.Pause(monday.Time))
	s.Since(10*time.Second-1, monday.Time)
	require.Equal(t, time.Second, s.Pause(monday.Time))
	require.Equal(t, time.Second, s.Pause(monday.Add(time.Minute)))
	require.Equal(t, 2*time.Second, s.Pause(monday.Add(time.Minute+1)))
}

var (
	here  = types.NamespacedName{Namespace: "a", Name: shard}
	there = types.NamespacedName{Namespace: "b", Name: shard}
)

func TestObserverMeasuresSinceTheRecordChanged(t *testing.T) {
	var o lease.Observer

	now := monday.Time
	record := lease.Record{Holder: shard}
	require.Zero(t, o.Observe(here, record, now))
	require.Equal(t, 5*time.Second, o.Observe(here, record, now.Add(5*time.Second)))
	require.Zero(t, o.Observe(there, record, now.Add(6*time.Second)),
		"the same name in another namespace is another Lease")
	require.Equal(t, 7*time.Second, o.Observe(here, record, now.Add(7*time.Second)))

	record.RenewTime = record.RenewTime.In(time.FixedZone("elsewhere", 3600))
	require.Equal(t, 8*time.Second, o.Observe(here, record, now.Add(8*time.Second)), "it is the same instant")

	record.Transitions++
	require.Zero(t, o.Observe(here, record, now.Add(8*time.Second)))
	require.Equal(t, time.Second, o.Observe(here, record, now.Add(9*time.Second)))

	o.Forget(here)
	require.Zero(t, o.Observe(here, record, now.Add(10*time.Second)))
	o.Forget(types.NamespacedName{})
}

func TestObserverNeverMeasuresLessThanNothing(t *testing.T) {
	var o lease.Observer

	record := lease.Record{Holder: shard}
	require.Zero(t, o.Observe(here, record, monday.Time))
	require.Zero(t, o.Observe(here, record, monday.Add(-time.Hour)))
	require.Equal(t, time.Second, o.Observe(here, record, monday.Add(time.Second)),
		"going back must not start the age anew")
}
