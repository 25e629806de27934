package shard

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
)

var errHung = errors.New("no website was reconciled for five minutes")

// A shard whose program is not healthy until the renew deadline is over. Because no worker is left, its objects can move at once.
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
			f.eventually("a healthy shard renews its Lease", func() bool { return f.lease(s).Spec.RenewTime.After(renewed.Time) })

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

// The Lease is not released while a worker ignores that the shard is over, which is the usual reason.
func TestShardThatIsNotHealthyKeepsItsLeaseFromOthers(t *testing.T) {
	f := newFixture(t)
	s := f.brief()
	exits := exiting(s)
	b := newBlocker()
	f.configMap(s, "a")

	var sick atomic.Bool

	s.options.Healthy = func(context.Context) error {
		if sick.Load() {
			return errHung
		}

		return nil
	}
	p := f.start(s, func(mgr ctrl.Manager) { f.controls(mgr, s, &corev1.ConfigMap{}, b.reconcile) })
	receive(f, b.entered, "the worker starts")

	sick.Store(true)

	err := receive(f, exits, "the process ends")
	require.ErrorIs(t, err, errStuck)
	require.ErrorIs(t, err, errHung)
	close(b.proceed)
	p.wait()
	require.ErrorIs(t, p.err, errHung)
	require.Equal(t, "shard-0", holder(f.lease(s)))
}

// One bad answer costs one renewal, and is forgotten with the next good one.
func TestOneBadAnswerDoesNotEndTheShard(t *testing.T) {
	f := newFixture(t)
	s := f.shard("shard-0")

	var answer error

	s.options.Healthy = func(context.Context) error { return answer }
	l := f.lock(s, f.config)

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

// If the program is healthy again, but the API server is away, that is the reason.
func TestReasonIsThatOfTheLastAnswer(t *testing.T) {
	testTerm(t, func(t *testing.T, term *term, _ *exits) {
		t.Helper()
		term.taken(term.clock.Now(), 0)
		term.asked(errHung)
		term.asked(nil)
		pass(testDeadline)
		require.ErrorIs(t, term.lost(), errLate)
		require.NotErrorIs(t, term.lost(), errHung)
	})
}
