package former

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/clusterring/clusterring/pkg/internal/testenv"
	"github.com/clusterring/clusterring/pkg/shard/internal/elect"
)

// A renewal by one holder is one for all of them, unless it may be so old that others respect it for less time than leader election counts on it.
func TestHoldersWithOneIdentityRenewForEachOther(t *testing.T) {
	const margin = 5 * time.Second

	begin := time.Unix(1_800_000_000, 0)
	renewal := func(holder string, after time.Duration) resourcelock.LeaderElectionRecord {
		return resourcelock.LeaderElectionRecord{
			HolderIdentity: holder, LeaseDurationSeconds: 15, AcquireTime: metav1.NewTime(begin), RenewTime: metav1.NewTime(begin.Add(after)),
		}
	}

	for name, tc := range map[string]struct {
		by    string
		after time.Duration
		// same is true if the other one changes something else than the time of the renewal.
		same, wins bool
	}{
		"renewed by another holder": {by: "all", after: margin - 1, wins: true},
		"a look that is too old":    {by: "all", after: margin},
		"taken by somebody else":    {by: "leader"},
		"changed otherwise":         {by: "all", same: true},
	} {
		t.Run(name, func(t *testing.T) {
			lock, err := elect.Lock(testenv.Config(t), types.NamespacedName{Namespace: testenv.Namespace(t), Name: "election"}, "all", 10*time.Second)
			require.NoError(t, err)

			clk := clocktesting.NewFakePassiveClock(begin)
			held := func() resourcelock.Interface {
				lock := *lock
				return &shared{LeaseLock: &lock, clock: clk, margin: margin}
			}
			first, second := held(), held()

			const odd = 7 * time.Nanosecond // the API server stores microseconds

			require.NoError(t, first.Create(t.Context(), renewal("all", 0)))
			require.NoError(t, first.Update(t.Context(), renewal("all", odd)))

			_, _, err = second.Get(t.Context())
			require.NoError(t, err)

			others := renewal(tc.by, time.Second)
			if tc.same {
				others.RenewTime = metav1.NewTime(begin)
				others.LeaderTransitions++
			}

			require.NoError(t, second.Update(t.Context(), others))

			clk.SetTime(begin.Add(tc.after))

			err = first.Update(t.Context(), renewal("all", 2*time.Second))
			require.Equal(t, !tc.wins, apierrors.IsConflict(err), err)
		})
	}
}
