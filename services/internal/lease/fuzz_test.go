package lease_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/services/internal/lease"
)

// Whatever a Lease contains, there is a decision about it, and the API server accepts what is written to take it: its validation
// requires a positive duration and transitions that are not negative.
func FuzzNext(f *testing.F) {
	f.Add(shard, int32(15), int32(0), int64(0), int64(time.Hour), uint8(0))
	f.Add("", int32(math.MaxInt32), int32(math.MaxInt32), int64(math.MinInt64), int64(math.MaxInt64), uint8(255))
	f.Add(contract.LeaseControllerIdentity, int32(-1), int32(-1), int64(math.MaxInt64), int64(-1), uint8(7))

	f.Fuzz(func(t *testing.T, holder string, seconds, transitions int32, renewed, age int64, flags uint8) {
		l := held()
		l.Spec.HolderIdentity, l.Spec.LeaseDurationSeconds, l.Spec.LeaseTransitions = &holder, &seconds, &transitions
		l.Spec.RenewTime = new(metav1.NewMicroTime(time.Unix(0, renewed)))

		s := lease.Snapshot{
			Shard: l.Name, Record: lease.RecordOf(l), Deleting: flags&1 > 0, Moving: flags&2 > 0, Together: flags&4 > 0, Ended: flags&8 > 0,
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
		require.LessOrEqual(t, time.Duration(*taken.Spec.LeaseDurationSeconds)*time.Second, 2*lease.MaxDuration)
		require.GreaterOrEqual(t, *taken.Spec.LeaseTransitions, int32(0))
		require.Equal(t, before, l, "what was judged is not changed")
		require.Equal(t, lease.RecordOf(l), lease.RecordOf(lease.Slim(l)))
	})
}
