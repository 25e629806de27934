package former

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/internal/testenv"
	"github.com/clusterring/clusterring/pkg/shard/internal/elect"
)

const (
	patience = 30 * time.Second
	interval = 20 * time.Millisecond
)

func TestMain(m *testing.M) { testenv.VerifyMain(m) }

func TestProcessEndsIfTheLeaseIsLost(t *testing.T) {
	key := client.ObjectKey{Namespace: testenv.Namespace(t), Name: "old"}
	e, err := New(testenv.Config(t),
		Options{Ring: "example", Namespace: key.Namespace, Name: key.Name, LeaseDuration: 3 * time.Second})
	require.NoError(t, err)

	calls := 0
	r := e.Reconciler(reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
		calls++
		return reconcile.Result{}, nil
	}))
	reconciled := func() int {
		before := calls
		result, err := r.Reconcile(t.Context(), reconcile.Request{})
		require.NoError(t, err)
		require.Equal(t, calls == before, result.RequeueAfter > 0)

		return calls - before
	}
	require.Zero(t, reconciled(), "the shards do not hold the Lease yet")

	ended := make(chan error, 1)
	go func() { ended <- e.Start(t.Context()) }()

	testenv.Receive(t, patience, e.Held(), "it has the Lease")
	require.Equal(t, 1, reconciled())

	require.Eventually(t, func() bool {
		l := testenv.Lease(t, testenv.Client(t), key)
		require.Equal(t, Identity("example"), *l.Spec.HolderIdentity)

		l.Spec.HolderIdentity = new("thief")
		l.Spec.RenewTime = &metav1.MicroTime{Time: l.Spec.RenewTime.Add(time.Hour)}

		return testenv.Client(t).Update(t.Context(), l) == nil
	}, patience, interval)

	err = testenv.Receive(t, patience, ended, "the election ends")
	require.ErrorIs(t, err, ErrLost)
	require.ErrorContains(t, err, key.String())
	require.Zero(t, reconciled())
}

func TestOptionsAreValidated(t *testing.T) {
	for want, options := range map[string]Options{
		"set Ring, and Namespace and Name": {},
		"must be greater than":             {Ring: "example", Namespace: "a", Name: "b", LeaseDuration: 1, RenewDeadline: 2},
	} {
		_, err := New(&rest.Config{Host: "https://example.com"}, options)
		require.ErrorContains(t, err, want)
	}
}

// A renewal by one holder is one for all of them, unless it may be so old that others respect it for less time than
// leader election counts on it.
func TestHoldersWithOneIdentityRenewForEachOther(t *testing.T) {
	const margin = 5 * time.Second

	begin := time.Unix(1_800_000_000, 0)
	renewal := func(holder string, after time.Duration) resourcelock.LeaderElectionRecord {
		return resourcelock.LeaderElectionRecord{
			HolderIdentity: holder, LeaseDurationSeconds: 15, AcquireTime: metav1.NewTime(begin),
			RenewTime: metav1.NewTime(begin.Add(after)),
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
			lock, err := elect.Lock(testenv.Config(t), types.NamespacedName{Namespace: testenv.Namespace(t), Name: "election"},
				"all", 10*time.Second)
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
