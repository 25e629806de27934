package rings

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

// TestAges follows a Lease whose shard has a clock that is years off.
func TestAges(t *testing.T) {
	clk := testclock.NewFakePassiveClock(time.Unix(1000, 0))
	leases := &Leases{Clock: clk}

	var (
		changed []string
		last    *coordinationv1.Lease
	)

	handler := leases.leaseHandler(func(ring string) { changed = append(changed, ring) })
	written := func(renewed int64, state string) (before, now *coordinationv1.Lease) {
		before, last = last, &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "ns", Name: "a", Labels: map[string]string{contract.LabelClusterRing: "ring"},
			},
			Spec: coordinationv1.LeaseSpec{RenewTime: new(metav1.NewMicroTime(time.Unix(renewed, 0)))},
		}
		if state != "" {
			last.Labels[contract.LabelState] = state
		}

		return before, last
	}
	update := func(renewed int64, state string) {
		before, now := written(renewed, state)
		handler.OnUpdate(before, now)
	}
	pass := func(d time.Duration) { clk.SetTime(clk.Now().Add(d)) }
	expect := func(age time.Duration, atLeast bool) {
		t.Helper()

		is, isAtLeast := leases.Of(client.ObjectKeyFromObject(last))
		require.Equal(t, age, is)
		require.Equal(t, atLeast, isAtLeast)
	}

	_, first := written(1, "")
	handler.OnAdd(first, true)
	pass(3 * time.Second)
	expect(3*time.Second, true) // it may have been renewed long ago

	update(1, "ready")
	expect(3*time.Second, true) // a label is no renewal
	require.Equal(t, []string{"ring"}, changed)

	update(2, "ready")
	expect(0, false)
	pass(5 * time.Second)
	expect(5*time.Second, false)

	update(1, "ready") // a clock that goes back
	expect(0, false)
	require.Len(t, changed, 1, "renewals are not told")

	handler.OnDelete(toolscache.DeletedFinalStateUnknown{Key: "ns/a"})

	_, again := written(1, "dead")
	handler.OnAdd(again, false)
	expect(0, true)
	require.Equal(t, []string{"ring", "ring"}, changed)
}

// cached is a cache of one Lease.
type cached struct {
	client.Reader

	lease *coordinationv1.Lease
}

func (c cached) Get(_ context.Context, _ client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	c.lease.DeepCopyInto(into.(*coordinationv1.Lease))
	return nil
}

// TestLeasesThatSeemOverdueAreConfirmed has a watch that is behind, as after an outage of the API server.
func TestLeasesThatSeemOverdueAreConfirmed(t *testing.T) {
	plane := localplane.Shared(t)
	l := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: plane.Namespace(t), Name: "a"},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: new("a"), LeaseDurationSeconds: new(int32(15))},
	}
	require.NoError(t, plane.Client.Create(t.Context(), l))

	r := &Rings{Reader: cached{lease: l.DeepCopy()}, Objects: newObjects(t, plane.Config)}

	shard := func(age time.Duration) *pb.Shard {
		return &pb.Shard{
			Namespace: l.Namespace, Name: "a", Holder: "a", LeaseDuration: durationpb.New(15 * time.Second),
			RenewalAge: durationpb.New(age),
			State:      pb.ShardState_SHARD_STATE_EXPIRED,
		}
	}
	for _, tc := range []struct {
		what    string
		written string // the state that is written with a renewal, if it is not ""
		shard   *pb.Shard
		name    string
		age     time.Duration
		atLeast bool
		state   pb.ShardState
	}{
		{"it is as it was seen", "", shard(time.Minute), "a", time.Minute, false, pb.ShardState_SHARD_STATE_EXPIRED},
		{"it was renewed, which this server has not seen", "ready", shard(time.Minute), "a", 0, true,
			pb.ShardState_SHARD_STATE_READY},
		{"it is not overdue", "", shard(15 * time.Second), "a", 15 * time.Second, false, pb.ShardState_SHARD_STATE_EXPIRED},
		{"of another shard", "", shard(time.Minute), "b", time.Minute, false, pb.ShardState_SHARD_STATE_EXPIRED},
		{"the lease monitor has written", "uncertain", shard(time.Minute), "a", time.Minute, false,
			pb.ShardState_SHARD_STATE_UNCERTAIN},
	} {
		if tc.written != "" {
			l.Labels = map[string]string{contract.LabelState: tc.written}
			require.NoError(t, plane.Client.Update(t.Context(), l))
		}

		r.Confirm(t.Context(), []*pb.Shard{tc.shard}, tc.name)
		require.Equal(t, tc.age, tc.shard.GetRenewalAge().AsDuration(), tc.what)
		require.Equal(t, tc.atLeast, tc.shard.GetAgeIsLowerBound(), tc.what)
		require.Equal(t, tc.state, tc.shard.GetState(), tc.what)
	}

	r.Reader = cached{lease: l}

	caughtUp := shard(time.Minute)
	r.Confirm(t.Context(), []*pb.Shard{caughtUp}, "a")
	require.Equal(t, time.Minute, caughtUp.GetRenewalAge().AsDuration(), "the watch has caught up")
}
