package ringquery_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/hashring"
	"github.com/clusterring/clusterring/tools/testkit/leasetest"
)

// configMaps is the spec of a ring of ConfigMaps that control Secrets.
func configMaps() v1alpha1.ClusterRingSpec {
	return v1alpha1.ClusterRingSpec{Resources: []v1alpha1.RingResource{{
		Resource: "configmaps", ControlledResources: []v1alpha1.ControlledResource{{Resource: "secrets"}},
	}}}
}

func TestListRingsGivesEveryRingOnce(t *testing.T) {
	s := startServer(t)

	var made []string

	for range 3 {
		ring, _ := s.makeRing(configMaps())
		made = append(made, ring)
	}

	var names []string

	for token := ""; ; {
		res, err := s.ListRings(t.Context(), &pb.ListRingsRequest{PageSize: 1, PageToken: token})
		require.NoError(t, err)

		for _, r := range res.GetRings() {
			names = append(names, r.GetName())
		}

		if token = res.GetNextPageToken(); token == "" {
			break
		}
		require.Len(t, res.GetRings(), 1)
	}
	require.Subset(t, names, made)
	require.IsIncreasing(t, names)

	all, err := s.ListRings(t.Context(), &pb.ListRingsRequest{})
	require.NoError(t, err)
	require.Len(t, all.GetRings(), len(names))
}

func TestGetRing(t *testing.T) {
	s := startServer(t)
	spec := configMaps()
	spec.Resources = append(spec.Resources, v1alpha1.RingResource{Group: "example.com", Resource: "foos"})
	name, ns := s.makeRing(spec)
	s.makeShards(name, ns, "a", "b", "c")

	gone := s.shard(name, ns, "gone")
	require.NoError(t, gone.Acquire(t.Context()))
	require.NoError(t, gone.Release(t.Context()))
	s.label(ns, "gone", "dead")
	s.label(ns, "a", "uncertain")
	require.NoError(t, s.shard(name, ns, "twice").Acquire(t.Context()))
	require.NoError(t, s.shard(name, s.plane.Namespace(t), "twice").Acquire(t.Context()))
	s.condition(name, "why")
	require.Eventually(t, func() bool {
		res := s.ring(name)
		shards := res.GetShards()

		return len(shards) == 6 && shards[0].GetState() == pb.ShardState_SHARD_STATE_UNCERTAIN &&
			shards[3].GetState() == pb.ShardState_SHARD_STATE_DEAD && len(res.GetRing().GetConditions()) == 1
	}, patience, interval)

	res := s.ring(name)
	ring, shards := res.GetRing(), res.GetShards()
	require.Positive(t, ring.GetCreateTime().GetSeconds())
	require.NotNil(t, ring.GetConditions()[0].GetLastTransitionTime())

	ring.CreateTime, ring.Conditions[0].LastTransitionTime = nil, nil
	want := &pb.Ring{
		Name: name, NamespaceSelector: "kubernetes.io/metadata.name notin " +
			"(kube-node-lease,kube-public,kube-system,sharding-system)",
		Shards: 6, AvailableShards: 3, Fingerprint: hashring.New([]string{"a", "b", "c"}).Fingerprint(),
		Conditions: []*pb.Condition{{Type: "Ready", Status: "False", Reason: "Test", Message: "why"}},
		Resources: []*pb.RingResource{
			{Resource: "configmaps", Kind: "ConfigMap", Role: pb.Role_ROLE_MAIN, KeyType: pb.KeyType_KEY_TYPE_NAME},
			{Resource: "secrets", Kind: "Secret", Role: pb.Role_ROLE_CONTROLLED},
			{Group: "example.com", Resource: "foos", Role: pb.Role_ROLE_MAIN, KeyType: pb.KeyType_KEY_TYPE_NAME},
		},
	}
	require.Equal(t, want.String(), ring.String())

	partitions, share := int32(0), 0.0

	for _, shard := range shards[:3] {
		require.True(t, shard.GetAvailable())
		require.Equal(t, ns, shard.GetNamespace())
		require.Equal(t, shard.GetName(), shard.GetHolder())

		partitions, share = partitions+shard.GetPartitions(), share+shard.GetShare()
	}
	require.EqualValues(t, hashring.Partitions, partitions)
	require.InDelta(t, 1, share, 1e-9)

	dead := shards[3]
	require.Equal(t, "gone", dead.GetName())
	require.False(t, dead.GetAvailable())
	require.Empty(t, dead.GetHolder())
	require.Equal(t, time.Second, dead.GetLeaseDuration().AsDuration())
	require.Zero(t, dead.GetPartitions())
	require.Contains(t, shards[4].GetProblem(), "held in the namespaces")
}

// label writes a state on a Lease, as the lease monitor does.
func (s *server) label(namespace, name, state string) {
	s.t.Helper()

	lease, err := s.shard("", namespace, name).Lease(s.t.Context())
	require.NoError(s.t, err)

	patch := []byte(`{"metadata":{"labels":{"` + contract.LabelState + `":"` + state + `"}}}`)
	require.NoError(s.t, s.plane.Client.Patch(s.t.Context(), lease, client.RawPatch(types.MergePatchType, patch)))
}

// watcher reads a stream of one ring and checks the invariants of every message.
type watcher struct {
	pb.DiagnosticsService_WatchRingClient

	t    testing.TB
	last *pb.WatchRingResponse
}

func watch(t testing.TB, client pb.DiagnosticsServiceClient, ring string) *watcher {
	t.Helper()

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)

	stream, err := client.WatchRing(ctx, &pb.WatchRingRequest{Name: ring})
	require.NoError(t, err)

	return &watcher{DiagnosticsService_WatchRingClient: stream, t: t}
}

// next returns the next message.
func (w *watcher) next() *pb.WatchRingResponse {
	w.t.Helper()

	res, err := w.Recv()
	require.NoError(w.t, err)
	require.NotEmpty(w.t, res.GetRing().GetName())

	if w.last == nil {
		require.Zero(w.t, res.GetRevision())
		require.Empty(w.t, res.GetJoined())
		require.Empty(w.t, res.GetLeft())
	} else {
		require.Greater(w.t, res.GetRevision(), w.last.GetRevision())
		// The shards that joined and left are the difference to the previous message.
		shards := append(available(w.last), res.GetJoined()...)
		shards = slices.DeleteFunc(shards, func(name string) bool { return slices.Contains(res.GetLeft(), name) })
		require.ElementsMatch(w.t, available(res), shards)
		require.True(w.t, slices.IsSorted(res.GetJoined()) && slices.IsSorted(res.GetLeft()))
	}

	w.last = res

	return res
}

// until returns the first wanted message.
func (w *watcher) until(wanted func(*pb.WatchRingResponse) bool) *pb.WatchRingResponse {
	w.t.Helper()

	for {
		if res := w.next(); wanted(res) {
			return res
		}
	}
}

// available returns the names of the available shards.
func available(res *pb.WatchRingResponse) (names []string) {
	for _, s := range res.GetShards() {
		if s.GetAvailable() {
			names = append(names, s.GetName())
		}
	}

	return names
}

func TestWatchRingTellsOfEveryChange(t *testing.T) {
	s := startServer(t)
	ring, ns := s.makeRing(configMaps())
	w := watch(t, s, ring)
	require.Empty(t, w.next().GetShards())

	a := s.shard(ring, ns, "a")
	require.NoError(t, a.Acquire(t.Context()))

	res := w.until(func(res *pb.WatchRingResponse) bool { return len(res.GetShards()) == 1 })
	require.Equal(t, []string{"a"}, res.GetJoined())
	require.Equal(t, "a", res.GetShards()[0].GetHolder())
	require.EqualValues(t, 16384, res.GetShards()[0].GetPartitions())
	require.EqualValues(t, 1, res.GetRing().GetAvailableShards())
	require.NotNil(t, res.GetShards()[0].GetRenewalAge())

	require.NoError(t, s.shard(ring, ns, "b").Acquire(t.Context()))
	require.Equal(t, []string{"b"},
		w.until(func(res *pb.WatchRingResponse) bool { return len(res.GetShards()) == 2 }).GetJoined())

	s.label(ns, "b", "expired")

	res = w.until(func(res *pb.WatchRingResponse) bool {
		return res.GetShards()[1].GetState() == pb.ShardState_SHARD_STATE_EXPIRED
	})
	require.Empty(t, res.GetJoined())
	require.Empty(t, res.GetLeft())

	require.NoError(t, a.Release(t.Context()))

	res = w.until(func(res *pb.WatchRingResponse) bool { return res.GetShards()[0].GetHolder() == "" })
	require.Equal(t, []string{"a"}, res.GetLeft())
	require.Len(t, res.GetShards(), 2)

	require.NoError(t, a.Delete(t.Context()))
	require.Empty(t, w.until(func(res *pb.WatchRingResponse) bool { return len(res.GetShards()) == 1 }).GetLeft())

	s.condition(ring, "something is wrong")
	w.until(func(res *pb.WatchRingResponse) bool { return len(res.GetRing().GetConditions()) == 1 })

	object := &v1alpha1.ClusterRing{}
	require.NoError(t, s.plane.Client.Get(t.Context(), types.NamespacedName{Name: ring}, object))
	object.Spec.Resources[0].ControlledResources = nil
	require.NoError(t, s.plane.Client.Update(t.Context(), object))
	w.until(func(res *pb.WatchRingResponse) bool { return len(res.GetRing().GetResources()) == 1 })

	require.NoError(t, s.plane.Client.Delete(t.Context(), object))

	_, err := w.Recv()
	require.Equal(t, codes.NotFound, status.Code(err), err)
	require.Equal(t, "RING_NOT_FOUND", reason(err))
}

// condition writes the status of a ring, as services do.
func (s *server) condition(ring, message string) {
	s.t.Helper()

	object := &v1alpha1.ClusterRing{}
	require.NoError(s.t, s.plane.Client.Get(s.t.Context(), types.NamespacedName{Name: ring}, object))
	object.Status.Conditions = []metav1.Condition{
		{Type: "Ready", Status: "False", Reason: "Test", Message: message, LastTransitionTime: metav1.Now()},
	}
	require.NoError(s.t, s.plane.Client.Status().Update(s.t.Context(), object))
}

// reason returns the reason in an error.
func reason(err error) string {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			return info.GetReason()
		}
	}

	return ""
}

// TestRenewalsAreNoMessages verifies that the message after many renewals is that of the next change, and that no
// revision is missing.
func TestRenewalsAreNoMessages(t *testing.T) {
	s := startServer(t)
	ring, ns := s.makeRing(configMaps())
	s.makeShards(ring, ns, "a")
	w := watch(t, s, ring)
	first := w.next()
	require.Len(t, first.GetShards(), 1)

	for range 20 {
		require.NoError(t, s.shard(ring, ns, "a").Renew(t.Context()))
	}
	s.label(ns, "a", "ready")

	res := w.next()
	require.Equal(t, pb.ShardState_SHARD_STATE_READY, res.GetShards()[0].GetState())
	require.EqualValues(t, 1, res.GetRevision())
	require.False(t, res.GetShards()[0].GetAgeIsLowerBound(), "the server has seen the Lease change")
}

func reasons(res *pb.ExplainResponse) (all []string) {
	for _, f := range res.GetFindings() {
		all = append(all, f.GetReason())
	}

	return all
}

// TestLabelInUse: of a ring whose label an older one uses, every answer says so, and none shows the labels of the other
// ring as its own.
func TestLabelInUse(t *testing.T) {
	s := startServer(t)
	s.grant()

	const label = "shared.example.com/shard"

	spec := configMaps()
	spec.ShardLabel = label
	first, ns := s.makeRing(spec)
	second, ns2 := s.makeRing(spec)

	for _, shard := range []*leasetest.Shard{s.shard(first, ns, "shard-1"), s.shard(second, ns2, "shard-2")} {
		shard.ShardLabel = label
		require.NoError(t, shard.Acquire(t.Context()))
		require.Eventually(t, func() bool { return s.ring(shard.Ring).GetRing().GetAvailableShards() > 0 }, patience,
			interval)
	}

	older, younger := first, second

	created := func(ring string) int64 { return s.ring(ring).GetRing().GetCreateTime().GetSeconds() }
	if created(first) == created(second) {
		older, younger = min(first, second), max(first, second) // the name decides
	}

	s.configMap(ns, "object", map[string]string{label: map[string]string{first: "shard-1", second: "shard-2"}[older]})

	object := &pb.ObjectReference{Type: &pb.ObjectReference_Kind{Kind: "ConfigMap"}, Namespace: ns, Name: "object"}
	refused := func(err error) {
		t.Helper()
		require.Equal(t, codes.FailedPrecondition, status.Code(err))
		require.ErrorContains(t, err, "ring "+older+", which is older, uses the same spec.shardLabel "+label)
	}

	_, err := s.Locate(t.Context(), &pb.LocateRequest{Ring: younger, Object: object})
	refused(err)
	_, err = s.ListAssignments(t.Context(), &pb.ListAssignmentsRequest{Ring: younger, Resource: "configmaps"})
	refused(err)
	_, err = s.Simulate(t.Context(), &pb.SimulateRequest{Ring: younger, Add: []string{"x"}})
	refused(err)

	explained, err := s.Explain(t.Context(), &pb.ExplainRequest{Ring: younger, Object: object})
	require.NoError(t, err)
	require.False(t, explained.GetHealthy())
	require.Contains(t, reasons(explained), "LABEL_IN_USE")
	require.Empty(t, explained.GetRings()[0].GetAssignment().GetShard())

	all := s.list(&pb.ListAssignmentsRequest{Ring: older, Resource: "configmaps", Namespace: ns})
	require.Equal(t, pb.AssignmentState_ASSIGNMENT_STATE_ASSIGNED, all[0].GetState())

	// Both shard the object by their specs; without a ring in the question, only the older one answers.
	located, err := s.Locate(t.Context(), &pb.LocateRequest{Object: object})
	require.NoError(t, err)

	for _, location := range located.GetLocations() {
		require.NotEqual(t, younger, location.GetRing())
	}
}
