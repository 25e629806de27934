package shard

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// stuck is a network on which requests for Leases never return, even after their context has ended.
type stuck struct {
	network
	release chan struct{}
	waiting chan struct{}
}

func newStuck(f *fixture) *stuck {
	n := &stuck{release: make(chan struct{}), waiting: make(chan struct{}, 100)}
	f.config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			if n.down.Load() && strings.Contains(req.URL.Path, "/leases/") {
				n.waiting <- struct{}{}
				<-n.release

				return nil, errDown
			}

			return next.RoundTrip(req)
		})
	})

	return n
}

// exiting makes the shard report instead of ending the process.
func exiting(s *Shard) <-chan error {
	exits := make(chan error, 1)
	s.term.exit = func(err error) { exits <- err }

	return exits
}

// Leader election waits for its request; the workers do not wait for leader election.
func TestWorkersStopWhileRenewalsAreStuck(t *testing.T) {
	f := newFixture(t)
	s := f.shard("shard-0")
	exits := exiting(s)
	f.configMap(s, "a")

	entered, cancelled := make(chan struct{}), make(chan error)
	proceed := make(chan struct{})
	n := newStuck(f)
	p := f.start(s, func(mgr ctrl.Manager) {
		f.controls(mgr, s, &corev1.ConfigMap{}, func(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
			close(entered)
			<-ctx.Done()
			cancelled <- context.Cause(ctx)
			<-proceed

			return reconcile.Result{}, nil
		})
	})
	receive(f, entered, "the worker starts")

	n.down.Store(true)
	receive(f, n.waiting, "a renewal is stuck")
	require.ErrorIs(t, receive(f, cancelled, "the worker is told to stop"), errLate)
	require.ErrorIs(t, receive(f, exits, "the process ends"), errStuck)

	close(n.release)
	p.wait()
	close(proceed)
	require.ErrorContains(t, p.err, "has released or lost its Lease")
}

// A worker that ignores its context after a stop keeps the Lease. If the Lease is then lost, the manager alone would wait for the
// worker forever.
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

// What a shard finds when it starts determines whether moves of its objects may be in progress.
func TestHoldOff(t *testing.T) {
	at := metav1.NewMicroTime(time.Unix(1_700_000_000, 0))
	lease := func(holder string, held time.Duration) *coordinationv1.LeaseSpec {
		return &coordinationv1.LeaseSpec{
			HolderIdentity: &holder, LeaseDurationSeconds: new(int32(3)),
			AcquireTime: &at, RenewTime: new(metav1.NewMicroTime(at.Add(held))),
		}
	}
	untimed := lease("shard-0", time.Hour)
	untimed.AcquireTime = nil

	for name, tc := range map[string]struct {
		found *coordinationv1.LeaseSpec
		waits bool
	}{
		"no Lease: new, or deleted long ago": {nil, true},
		"taken":                              {lease("shardlease-controller", 0), true},
		"given back":                         {lease("", time.Hour), true},
		"another's":                          {lease("someone", time.Hour), true},
		"still this shard's":                 {lease("shard-0", minHoldOff), false},
		"this shard's for a moment":          {lease("shard-0", minHoldOff-time.Millisecond), true},
		"this shard's, since nobody knows how long": {untimed, true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			s := f.shard("shard-0")
			clk := &lateClock{}
			s.term.clock = clk

			if tc.found != nil {
				require.NoError(t, f.admin.Create(t.Context(), &coordinationv1.Lease{
					ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: "shard-0"}, Spec: *tc.found,
				}))
			}

			l := f.lock(s, f.config)
			if _, _, err := l.Get(t.Context()); tc.found != nil {
				require.NoError(t, err)
				require.NoError(t, l.Update(t.Context(), record("shard-0", 1)))
			} else {
				require.Error(t, err)
				require.NoError(t, l.Create(t.Context(), record("shard-0", 1)))
			}

			if !tc.waits {
				require.NoError(t, s.term.held())

				return
			}
			require.ErrorIs(t, s.term.held(), ErrNotHeld)
			clk.ahead.Store(int64(minHoldOff))
			require.NoError(t, s.term.held())
		})
	}
}

// If the shard must wait, a reconcile is neither lost nor a failure.
func TestReconcileDuringTheHoldOff(t *testing.T) {
	f := newFixture(t)
	s := f.shard("shard-0")
	cm := f.configMap(s, "a")
	s.term.taken(s.term.clock.Now(), time.Hour)
	t.Cleanup(func() { s.term.close() })

	b := newBlocker()
	result, err := s.Reconciler(f.admin, &corev1.ConfigMap{}, reconcile.Func(b.reconcile)).Reconcile(t.Context(), request(cm))
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
	l := f.lock(s, f.config)
	require.NoError(t, l.Create(t.Context(), record("shard-0", 1)))
	clk.ahead.Store(int64(s.options.RenewDeadline))

	require.ErrorIs(t, l.Update(t.Context(), record("shard-0", 2)), errLate)
	_, _, err := l.Get(t.Context())
	require.ErrorIs(t, err, errLate)
	require.ErrorIs(t, l.Update(t.Context(), record("", 3)), errLate, "nor given back")
	require.Equal(t, "shard-0", holder(f.lease(s)))
}
