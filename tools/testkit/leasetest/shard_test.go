package leasetest_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	testclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/clusterring/clusterring/tools/testkit/leasetest"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

func TestMain(m *testing.M) { os.Exit(localplane.Main(m, nil)) }

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// TestWritesWhatClientGoWrites compares each step of a shard's life with client-go's lock.
func TestWritesWhatClientGoWrites(t *testing.T) {
	p := localplane.Shared(t)
	ns := p.Namespace(t)
	fake := testclock.NewFakePassiveClock(start)
	shard := &leasetest.Shard{Client: p.Client, Ring: "r", Namespace: ns, Name: "shard",
		Duration: 5 * time.Second, Clock: fake}
	api, err := coordinationv1client.NewForConfig(p.Config)
	require.NoError(t, err)

	lock := &resourcelock.LeaseLock{
		LeaseMeta: metav1.ObjectMeta{Namespace: ns,
			Name: "lock"}, Client: api, Labels: map[string]string{"alpha.sharding.timebertt.dev/clusterring": "r"},
		LockConfig: resourcelock.ResourceLockConfig{Identity: "shard"},
	}
	same := func(step string) {
		t.Helper()
		ours, err := shard.Lease(t.Context())
		require.NoError(t, err)
		theirs, err := api.Leases(ns).Get(t.Context(), "lock", metav1.GetOptions{})
		require.NoError(t, err)
		require.Equal(t, theirs.Spec, ours.Spec, step)
		require.Equal(t, theirs.Labels, ours.Labels, step)
	}
	record := resourcelock.LeaderElectionRecord{
		HolderIdentity: "shard", LeaseDurationSeconds: 5, AcquireTime: metav1.NewTime(start),
		RenewTime: metav1.NewTime(start),
	}

	require.NoError(t, shard.Acquire(t.Context()))
	require.NoError(t, lock.Create(t.Context(), record))
	same("create")

	fake.SetTime(start.Add(2 * time.Second))
	record.RenewTime = metav1.NewTime(fake.Now())
	require.NoError(t, shard.Renew(t.Context()))
	require.NoError(t, lock.Update(t.Context(), record))
	same("renew")

	fake.SetTime(start.Add(4 * time.Second))
	now := metav1.NewTime(fake.Now())
	require.NoError(t, shard.Release(t.Context()))
	require.NoError(t, lock.Update(t.Context(),
		resourcelock.LeaderElectionRecord{LeaseDurationSeconds: 1, AcquireTime: now, RenewTime: now}))
	same("release")

	require.ErrorContains(t, shard.Renew(t.Context()), `"" holds it`)
	require.NoError(t, shard.Acquire(t.Context()))

	record.AcquireTime, record.RenewTime, record.LeaderTransitions = now, now, 1
	require.NoError(t, lock.Update(t.Context(), record))
	same("acquire again")
}

// TestRun renews until it is told to stop, and ends when the Lease is taken.
func TestRun(t *testing.T) {
	p := localplane.Shared(t)
	shard := &leasetest.Shard{Client: p.Client, Ring: "r", Namespace: p.Namespace(t), Name: "shard", Duration: time.Second}
	require.NoError(t, shard.Acquire(t.Context()))
	before, err := shard.Lease(t.Context())
	require.NoError(t, err)

	ctx, cancel := context.WithCancel(t.Context())

	done := make(chan error, 1)
	go func() { done <- shard.Run(ctx) }()
	require.Eventually(t, func() bool {
		lease, err := shard.Lease(t.Context())
		return err == nil && lease.Spec.RenewTime.After(before.Spec.RenewTime.Time)
	}, 30*time.Second, 20*time.Millisecond)
	cancel()
	require.NoError(t, <-done)
	lease, err := shard.Lease(t.Context())
	require.NoError(t, err)
	require.Equal(t, "shard", ptr.Deref(lease.Spec.HolderIdentity, ""), "as after a crash")

	lease.Spec.HolderIdentity = new("shardlease-controller")
	require.NoError(t, p.Client.Update(t.Context(), lease))
	require.ErrorContains(t, shard.Run(t.Context()), `"shardlease-controller" holds it`)
}
