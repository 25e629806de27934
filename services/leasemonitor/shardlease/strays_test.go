package shardlease_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/services/leasemonitor/shardlease"
)

// inOne lists in one namespace, so that a test leaves the Leases of others alone. After each list, something may happen.
type inOne struct {
	client.Reader

	namespace string
	then      func()
}

func (r inOne) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	err := r.Reader.List(ctx, list, append(opts, client.InNamespace(r.namespace))...)
	r.then()

	return err
}

// sweepThen deletes the Leases in the shard's namespace that are due, and returns how many requests wrote. Something happens in between.
func (m *monitor) sweepThen(meanwhile, beforeDelete func()) (writes int) {
	m.t.Helper()

	write := func() { writes++ }
	strays := &shardlease.Strays{
		Cache: inOne{m.Client, m.shard.Namespace, meanwhile}, Clock: m.clock, Ages: m.Ages,
		Writer: &meddled{Client: m.Client, before: func() { write(); beforeDelete() }, beforePatch: write},
	}
	require.NoError(m.t, strays.Sweep(m.t.Context()))

	return writes
}

func (m *monitor) sweep() (writes int) {
	m.t.Helper()

	return m.sweepThen(func() {}, func() {})
}

// A Lease whose ring does not exist is written only when it is deleted, as late as if the ring existed.
func TestLeaseOfARingThatDoesNotExistIsOnlyDeleted(t *testing.T) {
	for name, tc := range map[string]struct {
		release bool
		due     time.Duration
		writes  int
	}{
		"held":     {false, 4*d + time.Minute, 2}, // nobody may delete a Lease that is held, so it is taken first
		"released": {true, time.Second + time.Minute, 1},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMonitor(t)
			m.shard.Ring = "made-up-" + m.shard.Namespace
			require.NoError(t, m.shard.Acquire(t.Context()))

			if tc.release {
				require.NoError(t, m.shard.Release(t.Context()))
			}

			before := m.lease()

			for _, at := range []time.Duration{0, d, 2*d + time.Second, tc.due - time.Second} {
				require.Zero(t, m.lookAt(at))
				require.Zero(t, m.sweep())
			}
			require.Equal(t, before, m.lease())

			m.pass(tc.due)
			require.Equal(t, tc.writes, m.sweep())
			require.Nil(t, m.lease())
			require.Empty(t, m.events.Events)
		})
	}
}

func TestStrayThatChangesBeforeItsDeletionStays(t *testing.T) {
	for name, tc := range map[string]struct {
		meanwhile, beforeDelete func(*monitor)
	}{
		"it is renewed":         {meanwhile: (*monitor).renew},
		"its ring is created":   {meanwhile: func(m *monitor) { m.exists(m.shard.Ring) }},
		"it is renewed at last": {beforeDelete: (*monitor).renew},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMonitor(t)
			m.shard.Ring = "made-up-" + m.shard.Namespace
			require.NoError(t, m.shard.Acquire(t.Context()))
			require.Zero(t, m.sweep())
			m.pass(time.Hour)

			do := func(what func(*monitor)) func() {
				return func() {
					if what != nil {
						what(m)
					}
				}
			}
			m.sweepThen(do(tc.meanwhile), do(tc.beforeDelete))
			require.NotNil(t, m.lease())
		})
	}
}

// renew acquires the shard's Lease, whoever holds it.
func (m *monitor) renew() {
	m.t.Helper()
	m.shard.Clock = testclock.NewFakeClock(m.clock.Now())
	require.NoError(m.t, m.shard.Acquire(m.t.Context()))
}

// A Lease of a ring that exists is the reconciler's.
func TestSweepLeavesTheLeasesOfRings(t *testing.T) {
	m := newMonitor(t)
	require.NoError(t, m.shard.Acquire(t.Context()))
	require.Zero(t, m.sweep())
	m.pass(time.Hour)
	require.Zero(t, m.sweep())
}
