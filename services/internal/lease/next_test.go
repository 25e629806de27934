package lease_test

import (
	"flag"
	"math"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/services/internal/lease"
)

// TestMain makes rapid use the same input in each run, unless -rapid.seed is set.
func TestMain(m *testing.M) {
	if err := flag.Set("rapid.seed", "1"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// The kubelet's word counts at any age, whatever has happened to other shards, and only for a Lease that the shard
// holds.
func TestNextBelievesTheKubelet(t *testing.T) {
	s := lease.Snapshot{Shard: shard, Record: lease.Record{Holder: shard, Duration: time.Minute}, Ended: true,
		Together: true}
	require.Equal(t, lease.Decision{State: lease.Uncertain, Action: lease.Acquire}, lease.Next(s, 0))

	s.Holder = ""
	require.Equal(t, lease.Decision{State: lease.Dead, CheckAfter: 2 * time.Minute}, lease.Next(s, 0))
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
		s.Deleting, s.Moving, s.Together = rapid.Bool().Draw(t, "deleting"), rapid.Bool().Draw(t,
			"moving"), rapid.Bool().Draw(t, "together")
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
		require.Equal(t, d.Action == lease.None && !ending, d.CheckAfter > 0,
			"either there is something to do or something to wait for")

		if d.CheckAfter > 0 {
			same := func(a, b lease.Decision) bool { return a.State == b.State && a.Action == b.Action }
			require.True(t, same(d, lease.Next(s, age+d.CheckAfter-1)), "something follows before the check")
			require.False(t, same(d, lease.Next(s, age+d.CheckAfter)), "the check finds nothing new")
		}

		s.AcquireTime, s.RenewTime, s.Transitions = time.Time{}, time.Time{}, 0
		require.Equal(t, d, lease.Next(s, age), "the times in a Lease have a say")
	})
}

// Whatever a Lease contains, there is a decision about it, and the API server accepts what is written to take it: its
// validation requires a positive duration and transitions that are not negative.
func FuzzNext(f *testing.F) {
	f.Add(shard, int32(15), int32(0), int64(0), int64(time.Hour), uint8(0))
	f.Add("", int32(math.MaxInt32), int32(math.MaxInt32), int64(math.MinInt64), int64(math.MaxInt64), uint8(255))
	f.Add(contract.LeaseControllerIdentity, int32(-1), int32(-1), int64(math.MaxInt64), int64(-1), uint8(7))

	f.Fuzz(func(t *testing.T, holder string, seconds, transitions int32, renewed, age int64, flags uint8) {
		l := held()
		l.Spec.HolderIdentity, l.Spec.LeaseDurationSeconds, l.Spec.LeaseTransitions = &holder, &seconds, &transitions
		l.Spec.RenewTime = new(metav1.NewMicroTime(time.Unix(0, renewed)))

		s := lease.Snapshot{
			Shard: l.Name, Record: lease.RecordOf(l), Deleting: flags&1 > 0, Moving: flags&2 > 0, Together: flags&4 > 0,
			Ended: flags&8 > 0,
		}
		if s.Transitions < 0 {
			return // the API server stores no such Lease
		}

		d := lease.Next(s, time.Duration(age))
		require.NotEmpty(t, d.State)
		require.GreaterOrEqual(t, d.CheckAfter, time.Duration(0))
		require.LessOrEqual(t, d.CheckAfter, 4*lease.MaxDuration, "it is looked at again")

		before := l.DeepCopy()
		own := (time.Duration(age) % lease.MaxDuration).Truncate(time.Second) // that of a record
		taken := lease.Acquired(l, lease.TakenFor(s, own), tuesday.Time)
		require.Equal(t, contract.LeaseControllerIdentity, *taken.Spec.HolderIdentity)
		require.Positive(t, *taken.Spec.LeaseDurationSeconds)

		most := 2 * lease.MaxDuration
		if !s.HeldBy(s.Shard) {
			most = 2 * lease.DefaultDuration // a released Lease may say anything
		}

		require.LessOrEqual(t, time.Duration(*taken.Spec.LeaseDurationSeconds)*time.Second, most)
		require.GreaterOrEqual(t, *taken.Spec.LeaseTransitions, int32(0))
		require.Equal(t, before, l, "what was judged is not changed")
		require.Equal(t, lease.RecordOf(l), lease.RecordOf(lease.Slim(l)))
	})
}
