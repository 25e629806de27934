package rings

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	testclock "k8s.io/utils/clock/testing"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/lease"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

// TestAges follows a Lease whose shard has a clock that is years off.
func TestAges(t *testing.T) {
	clk := testclock.NewFakePassiveClock(time.Unix(1000, 0))
	leases := NewLeases(clk)

	var changed []string

	handler := leases.leaseHandler(func(ring string) { changed = append(changed, ring) })
	id := types.NamespacedName{Namespace: "ns", Name: "a"}
	written := func(renewed int64, state string) *coordinationv1.Lease {
		l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
			Namespace: id.Namespace, Name: id.Name, Labels: map[string]string{contract.LabelClusterRing: "ring"},
		}}
		if state != "" {
			l.Labels[contract.LabelState] = state
		}

		l.Spec.RenewTime = new(metav1.NewMicroTime(time.Unix(renewed, 0)))

		return l
	}
	pass := func(d time.Duration) { clk.SetTime(clk.Now().Add(d)) }
	expect := func(state lease.State, age time.Duration, atLeast bool) {
		t.Helper()

		gotState, gotAge := leases.Of(id)
		require.Equal(t, state, gotState)
		require.Equal(t, Age{Time: age, AtLeast: atLeast}, gotAge)
	}

	expect("", 0, true) // never heard of

	handler.OnAdd(written(1, ""), true)
	pass(3 * time.Second)
	expect("", 3*time.Second, true) // it may have been renewed long ago

	handler.OnUpdate(nil, written(1, "ready"))
	expect("ready", 3*time.Second, true) // a label is no renewal
	require.Equal(t, []string{"ring"}, changed)

	handler.OnUpdate(nil, written(2, "ready"))
	expect("ready", 0, false)
	pass(5 * time.Second)
	expect("ready", 5*time.Second, false)

	handler.OnUpdate(nil, written(1, "ready")) // a clock that goes back
	expect("ready", 0, false)
	require.Len(t, changed, 1, "renewals are not told")

	handler.OnDelete(toolscache.DeletedFinalStateUnknown{Key: id.String()})
	expect("", 0, true)
	handler.OnAdd(written(1, "dead"), false)
	expect("dead", 0, true)
	require.Equal(t, []string{"ring", "ring"}, changed)
}

// TestLeasesThatSeemOverdueAreConfirmed has a watch that is behind, as after an outage of the API server.
func TestLeasesThatSeemOverdueAreConfirmed(t *testing.T) {
	plane := localplane.Shared(t)
	clk := testclock.NewFakePassiveClock(time.Unix(1000, 0))
	r := &Rings{Leases: NewLeases(clk), Objects: newObjects(t, plane.Config)}

	l := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: plane.Namespace(t), Name: "a"},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: new("a"), LeaseDurationSeconds: new(int32(15))},
	}
	require.NoError(t, plane.Client.Create(t.Context(), l))
	r.Leases.upsert(l)

	shard := func(age time.Duration) *pb.Shard {
		return &pb.Shard{
			Namespace: l.Namespace, Name: "a", Holder: "a", LeaseDuration: durationpb.New(15 * time.Second),
			RenewalAge: durationpb.New(age),
			State:      pb.ShardState_SHARD_STATE_EXPIRED,
		}
	}
	confirmed := func(s *pb.Shard, name string) (time.Duration, bool) {
		r.Confirm(t.Context(), []*pb.Shard{s}, name)

		return s.GetRenewalAge().AsDuration(), s.GetAgeIsLowerBound()
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

		age, atLeast := confirmed(tc.shard, tc.name)
		require.Equal(t, tc.age, age, tc.what)
		require.Equal(t, tc.atLeast, atLeast, tc.what)
		require.Equal(t, tc.state, tc.shard.GetState(), tc.what)
	}

	r.Leases.upsert(l)

	age, _ := confirmed(shard(time.Minute), "a")
	require.Equal(t, time.Minute, age, "the watch has caught up")
}
