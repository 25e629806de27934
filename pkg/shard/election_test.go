package shard

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/pkg/internal/testenv"
	"github.com/clusterring/clusterring/pkg/shard/internal/elect"
)

// timers is a clock that keeps what is to run later.
type timers struct {
	clock.RealClock

	now   time.Time
	after time.Duration
	run   func()
}

func (t *timers) Now() time.Time { return t.now }

func (t *timers) AfterFunc(after time.Duration, run func()) clock.Timer {
	t.after, t.run = after, run

	return nil
}

// What runs in one replica, and does not stop when the Lease is lost, would soon run in two.
func TestWorkThatDoesNotStopEndsTheProcess(t *testing.T) {
	for name, stops := range map[string]bool{"it stops": true, "it does not stop": false} {
		t.Run(name, func(t *testing.T) {
			var (
				later  = timers{now: time.Unix(1_800_000_000, 0)}
				exited []error
			)

			e := &election{LeaseLock: &resourcelock.LeaseLock{}, clock: &later,
				exit: func(err error) { exited = append(exited, err) }}
			require.True(t, e.crew.enter())

			e.renewed = later.now
			later.now = later.now.Add(12 * time.Second) // leader election has given up

			require.ErrorIs(t, e.lose(), errNoElection)
			require.False(t, e.crew.enter(), "nothing new begins")
			require.Equal(t, elect.LeaseDuration-12*time.Second, later.after, "then, the Lease may be taken")

			if stops {
				e.crew.leave()
			}

			later.run()

			if stops {
				require.Empty(t, exited)
				return
			}

			require.Len(t, exited, 1)
			require.ErrorIs(t, exited[0], errNoElection)
			require.ErrorContains(t, exited[0], "its work has not stopped")
		})
	}
}

// Leader election also releases a Lease that it could not renew.
func TestALeaseIsReleasedOnlyWithoutWork(t *testing.T) {
	lock, err := elect.Lock(testenv.Config(t), types.NamespacedName{Namespace: testenv.Namespace(t), Name: "election"},
		"me", 10*time.Second)
	require.NoError(t, err)

	clk := &timers{now: time.Unix(1_800_000_000, 0)}
	e := &election{LeaseLock: lock, clock: clk}
	require.True(t, e.crew.enter())

	now := metav1.NewTime(clk.now)
	record := resourcelock.LeaderElectionRecord{HolderIdentity: "me", LeaseDurationSeconds: 15, AcquireTime: now,
		RenewTime: now}
	require.NoError(t, e.Create(t.Context(), record))
	require.Equal(t, clk.now, e.renewed)

	clk.now = clk.now.Add(time.Second)
	record.RenewTime = metav1.NewTime(clk.now)
	require.NoError(t, e.Update(t.Context(), record))
	require.Equal(t, clk.now, e.renewed)

	clk.now, record.HolderIdentity = clk.now.Add(time.Second), ""
	require.ErrorIs(t, e.Update(t.Context(), record), errKept)
	e.crew.leave()
	require.NoError(t, e.Update(t.Context(), record))
	require.Equal(t, clk.now.Add(-time.Second), e.renewed, "the release is not a renewal")
}
