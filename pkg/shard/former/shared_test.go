package elect

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
)

func TestMain(m *testing.M) { testenv.VerifyMain(m) }

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
		shared bool
		by     string
		after  time.Duration
		// same is true if the other one changes something else than the time of the renewal.
		same, wins bool
	}{
		"renewed by another holder": {shared: true, by: "all", after: margin - 1, wins: true},
		"a look that is too old":    {shared: true, by: "all", after: margin},
		"taken by somebody else":    {shared: true, by: "leader"},
		"an election of its own":    {by: "all"},
		"changed otherwise":         {shared: true, by: "all", same: true},
	} {
		t.Run(name, func(t *testing.T) {
			client, err := Client(testenv.Config(t), "test", 10*time.Second)
			require.NoError(t, err)

			clk := clocktesting.NewFakePassiveClock(begin)
			options := Options{
				Lease: types.NamespacedName{Namespace: testenv.Namespace(t), Name: "election"}, Identity: "all",
				LeaseDuration: 10*time.Second + margin, RenewDeadline: 10 * time.Second, Shared: tc.shared,
			}
			first, second := options.lock(client, clk), options.lock(client, clk)

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

// Leader election also releases a Lease that it could not renew.
func TestALeaseIsReleasedOnlyIfItMayBe(t *testing.T) {
	client, err := Client(testenv.Config(t), "test", 10*time.Second)
	require.NoError(t, err)

	var renewed []time.Time

	idle := false
	clk := clocktesting.NewFakePassiveClock(time.Unix(1_800_000_000, 0))
	lock := Options{
		Lease: types.NamespacedName{Namespace: testenv.Namespace(t), Name: "election"}, Identity: "me",
		MayRelease: func() bool { return idle }, Renewed: func(sent time.Time) { renewed = append(renewed, sent) },
	}.lock(client, clk)

	now := metav1.NewTime(time.Unix(1_800_000_000, 0))
	record := resourcelock.LeaderElectionRecord{HolderIdentity: "me", LeaseDurationSeconds: 15, AcquireTime: now, RenewTime: now}
	require.NoError(t, lock.Create(t.Context(), record))
	require.NoError(t, lock.Update(t.Context(), record))

	record.HolderIdentity = ""
	require.ErrorIs(t, lock.Update(t.Context(), record), errKept)

	idle = true

	require.NoError(t, lock.Update(t.Context(), record))
	require.Equal(t, []time.Time{clk.Now(), clk.Now()}, renewed, "the release is not a renewal")
}
