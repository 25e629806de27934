package shard

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

func TestLeaseIsKeptWhileAWorkerIgnoresItsContext(t *testing.T) {
	f := newFixture(t)
	s := f.brief()
	b := newBlocker()
	f.configMap(s, "a")
	p := f.start(s, func(mgr ctrl.Manager) { f.controls(mgr, s, &corev1.ConfigMap{}, b.reconcile) })
	receive(f, b.entered, "the worker starts")

	p.cancel()

	stopped := f.lease(s).Spec.RenewTime
	f.eventually("the Lease is renewed long after the stop", func() bool {
		return f.lease(s).Spec.RenewTime.After(stopped.Add(s.options.RenewDeadline))
	})
	require.Equal(t, "shard-0", holder(f.lease(s)))

	close(b.proceed)
	require.NoError(t, p.stop())
	require.Empty(t, holder(f.lease(s)))
}

// The manager waits for workers only as long as its options allow; the lock must not rely on it.
func TestLeaseIsKeptWhenTheManagerDoesNotWait(t *testing.T) {
	f := newFixture(t)
	s := f.shard("shard-0")
	l := f.lock(s)
	require.NoError(t, l.Create(t.Context(), record("shard-0", 1)))

	end := f.begin(s)

	require.ErrorContains(t, l.Update(t.Context(), record("", 2)), "workers still run")
	require.Equal(t, "shard-0", holder(f.lease(s)))

	end()
	require.NoError(t, l.Update(t.Context(), record("", 3)))
	require.Empty(t, holder(f.lease(s)))
}

func TestLeaseIsKeptWhenItCouldNotBeRenewed(t *testing.T) {
	f := newFixture(t)
	s := f.shard("shard-0")
	w := f.wire()
	l := f.lock(s)
	require.NoError(t, l.Create(t.Context(), record("shard-0", 1)))

	w.via(down)
	require.ErrorIs(t, l.Update(t.Context(), record("shard-0", 2)), errDown)
	w.via(nil)

	require.ErrorContains(t, l.Update(t.Context(), record("", 3)), "could not be renewed")
	require.Equal(t, "shard-0", holder(f.lease(s)))
	require.ErrorIs(t, s.term.held(), ErrLost)
}

// A Lease that others have taken, or given away in the shard's name, is not taken back: the objects may have moved.
func TestLeaseThatWasTakenEndsTheManager(t *testing.T) {
	for _, by := range []string{contract.LeaseControllerIdentity, ""} {
		t.Run("by "+by, func(t *testing.T) {
			f := newFixture(t)
			s := f.brief()
			p := f.start(s, func(mgr ctrl.Manager) { f.controls(mgr, s, &corev1.ConfigMap{}, nothing) })
			f.held(s)
			f.overwrite(s, func(lease *coordinationv1.Lease) { lease.Spec.HolderIdentity = &by })

			p.wait()
			require.ErrorContains(t, p.err, "has released or lost its Lease")
			require.Equal(t, by, holder(f.lease(s)))
			require.ErrorIs(t, s.term.held(), ErrLost)
		})
	}
}

// lock returns the shard's lock.
func (f *fixture) lock(s *Shard) *lock {
	f.Helper()

	leases, err := s.options.leases(f.config, s.options.RenewDeadline)
	require.NoError(f, err)

	return s.lockFor(leases, s.Name())
}

// begin lets a worker begin, after the hold-off, and returns a function that ends it.
func (f *fixture) begin(s *Shard) func() {
	f.Helper()

	var end func()
	f.eventually("a worker may begin", func() bool {
		var err error

		_, end, err = s.term.begin(f.Context())

		return err == nil
	})

	return end
}

// record is what leader election would write at the given second.
func record(holder string, second int64) resourcelock.LeaderElectionRecord {
	at := metav1.Unix(1_700_000_000+second, 123_456_789)

	return resourcelock.LeaderElectionRecord{HolderIdentity: holder, LeaseDurationSeconds: 3, AcquireTime: at,
		RenewTime: at}
}

// overwrite changes the shard's Lease, which the shard concurrently renews.
func (f *fixture) overwrite(s *Shard, change func(*coordinationv1.Lease)) {
	f.Helper()
	f.eventually("the Lease is changed", func() bool {
		lease := f.lease(s)
		change(lease)

		return f.admin.Update(f.Context(), lease, &client.UpdateOptions{}) == nil
	})
}

// The answer to a renewal may be lost with the shard's context: the Lease is released nevertheless.
func TestLeaseIsGivenBackAfterACancelledRenewal(t *testing.T) {
	f := newFixture(t)
	s := f.shard("shard-0")
	l := f.lock(s)
	require.NoError(t, l.Create(t.Context(), record("shard-0", 1)))

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, l.Update(ctx, record("shard-0", 2)), context.Canceled)
	_, _, err := l.Get(t.Context())
	require.NoError(t, err)
	require.NoError(t, l.Update(t.Context(), record("", 3)))
	require.Empty(t, holder(f.lease(s)))
}

func TestTheLaterProcessIsNoticedByTheEarlierOne(t *testing.T) {
	f := newFixture(t)
	first, second := f.shard("shard-0"), f.shard("shard-0")
	earlier, later := f.lock(first), f.lock(second)
	require.NoError(t, earlier.Create(t.Context(), record("shard-0", 1)))

	_, _, err := later.Get(t.Context())
	require.NoError(t, err, "a predecessor, for all that it knows")
	require.NoError(t, later.Update(t.Context(), record("shard-0", 2)))

	require.Error(t, earlier.Update(t.Context(), record("shard-0", 3)))
	_, _, err = earlier.Get(t.Context())
	require.ErrorContains(t, err, "another process with the same name")
	require.ErrorIs(t, first.term.held(), ErrLost)
	require.Error(t, earlier.Update(t.Context(), record("shard-0", 4)), "it does not write again")
	require.Error(t, earlier.Update(t.Context(), record("", 5)), "nor give away what is another's")

	require.NoError(t, later.Update(t.Context(), record("shard-0", 6)))
	f.begin(second)()
}

// exiting makes the shard report instead of ending the process.
func exiting(s *Shard) <-chan error {
	exits := make(chan error, 1)
	s.term.exit = func(err error) { exits <- err }

	return exits
}

// A worker that ignores its context after a stop keeps the Lease. If the Lease is then lost, the manager alone would
// wait for the worker forever.
func TestProcessEndsIfTheLeaseIsLostAfterAStop(t *testing.T) {
	f := newFixture(t)
	s := f.shard("shard-0")
	exits := exiting(s)
	b := newBlocker()
	f.configMap(s, "a")
	p := f.start(s, func(mgr ctrl.Manager) { f.controls(mgr, s, &corev1.ConfigMap{}, b.reconcile) })
	receive(f, b.entered, "the worker starts")

	p.cancel()
	f.overwrite(s, func(lease *coordinationv1.Lease) { lease.Spec.HolderIdentity = new("shardlease-controller") })
	require.ErrorContains(t, receive(f, exits, "the process ends"), `its holder is now "shardlease-controller"`)
	close(b.proceed)

	_ = p.stop()
	require.Equal(t, "shardlease-controller", holder(f.lease(s)))
}

// If the shard must wait, a reconcile is neither lost nor a failure.
func TestReconcileDuringTheHoldOff(t *testing.T) {
	f := newFixture(t)
	s := f.shard("shard-0")
	cm := f.configMap(s, "a")
	s.term.taken(s.term.clock.Now(), time.Hour)
	t.Cleanup(func() { s.term.close() })

	b := newBlocker()
	result, err := s.Reconciler(f.admin, &corev1.ConfigMap{},
		reconcile.Func(b.reconcile)).Reconcile(t.Context(), request(cm))
	require.NoError(t, err)
	require.InDelta(t, time.Hour, result.RequeueAfter, float64(time.Minute))
	require.Empty(t, b.entered)
}

// A Lease that this process could not renew in time is not renewed later: its workers were told to stop.
func TestLeaseIsNotRenewedAfterTheDeadline(t *testing.T) {
	f := newFixture(t)
	s := f.shard("shard-0")
	clk := &lateClock{RealClock: clock.RealClock{}}
	s.term.clock = clk
	l := f.lock(s)
	require.NoError(t, l.Create(t.Context(), record("shard-0", 1)))
	clk.ahead.Store(int64(s.options.RenewDeadline))

	require.ErrorIs(t, l.Update(t.Context(), record("shard-0", 2)), errLate)
	_, _, err := l.Get(t.Context())
	require.ErrorIs(t, err, errLate)
	require.ErrorIs(t, l.Update(t.Context(), record("", 3)), errLate, "nor given back")
	require.Equal(t, "shard-0", holder(f.lease(s)))
}

var errHung = errors.New("no website was reconciled for five minutes")

// A shard whose program is not healthy until the renew deadline is over. Because no worker is left, its objects can
// move at once.
func TestShardThatIsNotHealthyGivesItsLeaseUp(t *testing.T) {
	for name, answer := range map[string]func(release <-chan struct{}) error{
		"an error":  func(<-chan struct{}) error { return errHung },
		"no answer": func(release <-chan struct{}) error { <-release; return nil },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			s := f.brief()
			release := make(chan struct{})
			t.Cleanup(func() { close(release) })

			var asked, sick atomic.Bool

			s.options.Healthy = func(context.Context) error {
				asked.Store(true)

				if !sick.Load() {
					return nil
				}

				return answer(release)
			}
			p := f.start(s, func(mgr ctrl.Manager) { f.controls(mgr, s, &corev1.ConfigMap{}, nothing) })
			f.eventually("it is asked", asked.Load)
			f.held(s)

			renewed := f.lease(s).Spec.RenewTime
			f.eventually("a healthy shard renews its Lease",
				func() bool { return f.lease(s).Spec.RenewTime.After(renewed.Time) })

			sick.Store(true)
			p.wait()
			require.ErrorIs(t, p.err, ErrLost)
			require.ErrorIs(t, p.err, errSick)

			if name == "an error" {
				require.ErrorIs(t, p.err, errHung)
			} else {
				require.ErrorIs(t, p.err, context.DeadlineExceeded)
			}

			require.Empty(t, holder(f.lease(s)), "released")
		})
	}
}

// One bad answer costs one renewal, and is forgotten with the next good one.
func TestOneBadAnswerDoesNotEndTheShard(t *testing.T) {
	f := newFixture(t)
	s := f.shard("shard-0")

	var answer error

	s.options.Healthy = func(context.Context) error { return answer }
	l := f.lock(s)

	answer = errHung

	require.NoError(t, l.Create(t.Context(), record("shard-0", 1)), "the program is not asked before it has the Lease")
	require.ErrorIs(t, l.Update(t.Context(), record("shard-0", 2)), errHung)
	require.Equal(t, record("", 1).RenewTime.Unix(), f.lease(s).Spec.RenewTime.Unix(), "not renewed")
	require.NoError(t, s.term.lost())

	answer = nil

	require.NoError(t, l.Update(t.Context(), record("shard-0", 3)))
	require.NoError(t, s.term.lost())

	// A shard that is told to stop is not kept from releasing its Lease.
	answer = errHung

	require.ErrorIs(t, l.Update(t.Context(), record("shard-0", 4)), errHung)
	require.NoError(t, l.Update(t.Context(), record("", 5)))
	require.Empty(t, holder(f.lease(s)))
}
