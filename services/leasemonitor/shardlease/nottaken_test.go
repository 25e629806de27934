package shardlease_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

// refusing is a client whose requests are refused, kind by kind.
type refusing struct {
	client.Client

	get, patch, update error
}

func (c *refusing) Get(ctx context.Context, id client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	if c.get != nil {
		return c.get
	}

	return c.Client.Get(ctx, id, obj, opts...)
}

func (c *refusing) Patch(ctx context.Context, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
	if c.patch != nil {
		return c.patch
	}

	return c.Client.Patch(ctx, obj, patch, opts...)
}

func (c *refusing) Update(ctx context.Context, obj client.Object, opts ...client.UpdateOption) error {
	if c.update != nil {
		return c.update
	}

	return c.Client.Update(ctx, obj, opts...)
}

// try reconciles the shard's Lease once, which may fail.
func (m *monitor) try(since time.Duration) error {
	m.t.Helper()
	m.pass(since)

	_, err := m.Reconcile(m.t.Context(), reconcile.Request{NamespacedName: m.id()})

	return err
}

// told returns what people are told of the shard's ring.
func (m *monitor) told() []string { return m.NotTaken.Of(m.shard.Ring) }

// refused makes a monitor with a silent shard and an API server that refuses requests. It returns when the Lease is due to
// be taken over, and the rings that people were told to look at.
func refused(t *testing.T, how refusing) (m *monitor, api *refusing, due time.Duration, calls *[]string) {
	t.Helper()

	m = newMonitor(t)
	require.NoError(t, m.shard.Acquire(t.Context()))
	m.look()

	how.Client = m.Client

	m.Live = &how
	if how.get == nil {
		m.Client = &how
	}

	calls = &[]string{}
	m.NotTaken.Subscribe(func(ring string) { *calls = append(*calls, ring) })

	return m, &how, 2*d + time.Second, calls
}

var errRefused = apierrors.NewForbidden(schema.GroupResource{Resource: "leases"}, "shard-0", errors.New("a policy says no"))

// Whatever keeps a Lease from being taken over is told, after a moment, and until it is over.
func TestLeaseThatCannotBeTakenIsTold(t *testing.T) {
	for name, tc := range map[string]struct {
		how  refusing
		what string
	}{
		"the take-over":       {refusing{update: errRefused}, "take over Lease"},
		"the label before it": {refusing{patch: errRefused}, "label Lease"},
		"the read before it":  {refusing{get: errRefused}, "read Lease"},
	} {
		t.Run(name, func(t *testing.T) {
			m, api, due, calls := refused(t, tc.how)

			require.ErrorIs(t, m.try(due), errRefused)
			require.Empty(t, m.told(), "it may pass by itself")
			require.ErrorIs(t, m.try(due+time.Second), errRefused)
			require.Len(t, m.told(), 1)
			require.Contains(t, m.told()[0], "shard "+m.id().String()+" has not renewed its Lease since 2026-01-02T03:04:05Z and its objects wait, "+
				"because the Lease cannot be taken over: "+tc.what)
			require.Contains(t, m.told()[0], "a policy says no")

			first := m.told()
			require.ErrorIs(t, m.try(due+time.Minute), errRefused)
			require.Equal(t, first, m.told())
			require.Equal(t, []string{m.shard.Ring}, *calls, "nothing new is nothing to look at")

			api.get, api.patch, api.update = nil, nil, nil
			m.look()
			require.Equal(t, contract.LeaseControllerIdentity, *m.lease().Spec.HolderIdentity)
			require.Empty(t, m.told())
			require.Equal(t, []string{m.shard.Ring, m.shard.Ring}, *calls)
		})
	}
}

// What is refused of a shard that lives, or that has released its Lease, keeps no objects waiting.
func TestOnlyDueTakeOversAreTold(t *testing.T) {
	m, _, _, calls := refused(t, refusing{patch: errRefused, update: errRefused})

	require.NoError(t, m.try(d-1))
	require.ErrorIs(t, m.try(d+time.Second), errRefused, "the label expired")
	require.ErrorIs(t, m.try(2*d), errRefused)
	require.NoError(t, m.shard.Release(t.Context()))
	require.ErrorIs(t, m.try(3*d), errRefused, "the label dead")
	require.ErrorIs(t, m.try(30*d), errRefused, "the label orphaned")
	require.Empty(t, m.told())
	require.Empty(t, *calls)
}

// Whoever failed before it was due is told at once when it is.
func TestFailureThatIsOlderIsToldAtOnce(t *testing.T) {
	m, _, due, _ := refused(t, refusing{patch: errRefused})

	require.ErrorIs(t, m.try(d+time.Second), errRefused, "the label expired")
	require.Empty(t, m.told())
	require.ErrorIs(t, m.try(due), errRefused)
	require.Len(t, m.told(), 1)
}

func TestNothingIsToldOfLeaseThatIsRenewedOrGone(t *testing.T) {
	for name, end := range map[string]func(*monitor) error{
		"renewed": func(m *monitor) error {
			m.shard.Clock = m.clock
			return m.shard.Renew(m.t.Context())
		},
		"deleted": func(m *monitor) error { return m.admin.Delete(m.t.Context(), m.lease()) },
		"of no ring": func(m *monitor) error {
			l := m.lease()
			delete(l.Labels, contract.LabelClusterRing)

			return m.admin.Update(m.t.Context(), l)
		},
	} {
		t.Run(name, func(t *testing.T) {
			m, _, due, calls := refused(t, refusing{patch: errRefused, update: errRefused})
			require.ErrorIs(t, m.try(due), errRefused)
			require.ErrorIs(t, m.try(due+time.Second), errRefused)
			require.Len(t, m.told(), 1)

			require.NoError(t, end(m))
			_ = m.try(due + 2*time.Second) // a label may still be refused
			require.Empty(t, m.told())
			require.Equal(t, []string{m.shard.Ring, m.shard.Ring}, *calls)
		})
	}
}

// A Lease may change its ring: each ring tells of its own.
func TestTheRingThatTheLeaseHasLeftTellsNothing(t *testing.T) {
	m, _, due, calls := refused(t, refusing{patch: errRefused})
	require.ErrorIs(t, m.try(due), errRefused)
	require.ErrorIs(t, m.try(due+time.Second), errRefused)

	another := "another-" + m.shard.Namespace
	m.exists(another)

	l := m.lease()
	l.Labels[contract.LabelClusterRing] = another
	require.NoError(t, m.admin.Update(t.Context(), l))
	require.ErrorIs(t, m.try(due+2*time.Second), errRefused)
	require.Empty(t, m.told())
	require.Len(t, m.NotTaken.Of(another), 1)
	require.Equal(t, []string{m.shard.Ring, m.shard.Ring, another}, *calls)
}
