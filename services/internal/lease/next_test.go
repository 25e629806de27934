package lease_test

import (
	"flag"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/clusterring/clusterring/services/internal/lease"
)

// TestMain makes rapid use the same input in each run, unless -rapid.seed is set.
func TestMain(m *testing.M) {
	if err := flag.Set("rapid.seed", "1"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

func TestNextAtTheEdges(t *testing.T) {
	const d = 10 * time.Second
	for _, tc := range []struct {
		holder string
		age    time.Duration
		want   lease.Decision
	}{
		{shard, -time.Hour, lease.Decision{State: lease.Ready, CheckAfter: d}},
		{shard, 0, lease.Decision{State: lease.Ready, CheckAfter: d}},
		{shard, d - 1, lease.Decision{State: lease.Ready, CheckAfter: 1}},
		{shard, d, lease.Decision{State: lease.Expired, CheckAfter: d + 1}},
		{shard, 2 * d, lease.Decision{State: lease.Expired, CheckAfter: 1}},
		{shard, 2*d + 1, lease.Decision{State: lease.Uncertain, Action: lease.Acquire}},
		{shard, 1 << 62, lease.Decision{State: lease.Uncertain, Action: lease.Acquire}},
		{"", 0, lease.Decision{State: lease.Dead, CheckAfter: d + time.Minute}},
		{"", d + time.Minute - 1, lease.Decision{State: lease.Dead, CheckAfter: 1}},
		{"", d + time.Minute, lease.Decision{State: lease.Orphaned, Action: lease.Delete}},
		{"x", 0, lease.Decision{State: lease.Dead, CheckAfter: d + time.Minute}},
		{"x", 1 << 62, lease.Decision{State: lease.Orphaned, Action: lease.Delete}},
	} {
		s := lease.Snapshot{Shard: shard, Record: lease.Record{Holder: tc.holder, Duration: d}}
		require.Equal(t, tc.want, lease.Next(s, tc.age), "holder %q, age %s", tc.holder, tc.age)
	}
}

// The kubelet's word counts at any age, whatever has happened to other shards, and only for a Lease that the shard holds.
func TestNextBelievesTheKubelet(t *testing.T) {
	s := lease.Snapshot{Shard: shard, Record: lease.Record{Holder: shard, Duration: time.Minute}, Ended: true, Together: true}
	require.Equal(t, lease.Decision{State: lease.Uncertain, Action: lease.Acquire}, lease.Next(s, 0))

	s.Holder = ""
	require.Equal(t, lease.Decision{State: lease.Dead, CheckAfter: 2 * time.Minute}, lease.Next(s, 0))
}

func TestNextWithoutDuration(t *testing.T) {
	s := lease.Snapshot{Shard: shard, Record: lease.Record{Holder: shard}}
	require.Equal(t, lease.DefaultDuration, lease.Next(s, 0).CheckAfter)
}

func TestNextProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := lease.Snapshot{Shard: shard, Record: lease.Record{
			Holder:      rapid.SampledFrom([]string{shard, "", "web-1", "shardlease-controller"}).Draw(t, "holder"),
			Duration:    time.Duration(rapid.Int64Range(int64(time.Second), int64(lease.MaxDuration)).Draw(t, "duration")),
			AcquireTime: time.Unix(rapid.Int64().Draw(t, "acquireTime"), 0),
			RenewTime:   time.Unix(rapid.Int64().Draw(t, "renewTime"), 0),
			Transitions: rapid.Int32().Draw(t, "transitions"),
		}}
		age := time.Duration(rapid.Int64Range(0, 3*int64(s.Duration)).Draw(t, "age"))
		s.Deleting, s.Moving, s.Together = rapid.Bool().Draw(t, "deleting"), rapid.Bool().Draw(t, "moving"), rapid.Bool().Draw(t, "together")
		s.Ended = rapid.Bool().Draw(t, "ended")
		s.Kept = time.Duration(rapid.Int64Range(0, 25*int64(s.Duration)).Draw(t, "kept"))
		d := lease.Next(s, age)

		require.Equal(t, s.Holder == shard, d.State.Available(), "availability depends on the holder alone")
		failed := d.State == lease.Uncertain && (s.Ended || !s.Together || age > 3*s.Duration)
		left := d.State == lease.Dead && s.Moving && s.Holder == "" && age >= lease.ReleasedFor
		ending := d.State == lease.Orphaned && s.Deleting
		require.Equal(t, failed || left, d.Action == lease.Acquire)
		require.Equal(t, d.State == lease.Orphaned && !s.Deleting, d.Action == lease.Delete)

		if d.Action == lease.Renew {
			require.True(t, d.State == lease.Dead && s.Moving && s.Holder == "shardlease-controller" && s.Kept < 10*s.Duration)
		}
		require.Equal(t, d.Action == lease.None && !ending, d.CheckAfter > 0, "either there is something to do or something to wait for")

		if d.CheckAfter > 0 {
			same := func(a, b lease.Decision) bool { return a.State == b.State && a.Action == b.Action }
			require.True(t, same(d, lease.Next(s, age+d.CheckAfter-1)), "something follows before the check")
			require.False(t, same(d, lease.Next(s, age+d.CheckAfter)), "the check finds nothing new")
		}

		s.AcquireTime, s.RenewTime, s.Transitions = time.Time{}, time.Time{}, 0
		require.Equal(t, d, lease.Next(s, age), "the times in a Lease have a say")
	})
}

func TestStatesOnTheWire(t *testing.T) {
	require.Equal(t, []lease.State{"ready", "expired", "uncertain", "dead", "orphaned"},
		[]lease.State{lease.Ready, lease.Expired, lease.Uncertain, lease.Dead, lease.Orphaned})
	require.False(t, lease.State("").Available())
}
