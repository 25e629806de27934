package ringquery_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/hashring"
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
	require.True(t, slices.IsSorted(names))
	require.Equal(t, names, slices.Compact(slices.Clone(names)))

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
	require.Equal(t, name, ring.GetName())
	require.Equal(t, "kubernetes.io/metadata.name notin (kube-node-lease,kube-public,kube-system,sharding-system)",
		ring.GetNamespaceSelector())
	require.WithinRange(t, ring.GetCreateTime().AsTime(), time.Unix(1, 0), time.Unix(1<<40, 0))
	require.Equal(t, hashring.New([]string{"a", "b", "c"}).Fingerprint(), ring.GetFingerprint())
	require.EqualValues(t, 6, ring.GetShards())
	require.EqualValues(t, 3, ring.GetAvailableShards())
	require.Equal(t, "Ready False Test why", ring.GetConditions()[0].GetType()+" "+ring.GetConditions()[0].GetStatus()+
		" "+ring.GetConditions()[0].GetReason()+" "+ring.GetConditions()[0].GetMessage())
	require.NotNil(t, ring.GetConditions()[0].GetLastTransitionTime())

	var resources []string
	for _, r := range ring.GetResources() {
		resources = append(resources, r.GetResource()+"/"+r.GetKind()+"/"+r.GetRole().String())
	}
	require.Equal(t, []string{"configmaps/ConfigMap/ROLE_MAIN", "secrets/Secret/ROLE_CONTROLLED", "foos//ROLE_MAIN"},
		resources)

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

	for _, twice := range shards[4:] {
		require.False(t, twice.GetAvailable())
		require.Contains(t, twice.GetProblem(), "held in the namespaces")
	}
}

// label writes a state on a Lease, as the lease monitor does.
func (s *server) label(namespace, name, state string) {
	s.t.Helper()

	lease, err := s.shard("", namespace, name).Lease(s.t.Context())
	require.NoError(s.t, err)

	patch := []byte(`{"metadata":{"labels":{"` + contract.LabelState + `":"` + state + `"}}}`)
	require.NoError(s.t, s.plane.Client.Patch(s.t.Context(), lease, client.RawPatch(types.MergePatchType, patch)))
}

func TestReplicasAgree(t *testing.T) {
	one, two := startServer(t), startServer(t)
	name, ns := one.makeRing(configMaps())
	one.makeShards(name, ns, "a", "b", "c")
	fingerprint := one.ring(name).GetRing().GetFingerprint()
	require.Eventually(t, func() bool {
		res, err := two.GetRing(t.Context(), &pb.GetRingRequest{Name: name})
		return err == nil && res.GetRing().GetFingerprint() == fingerprint
	}, patience, interval)
}

// watcher reads a stream of one ring and checks the invariants of every message.
type watcher struct {
	pb.DiagnosticsService_WatchRingClient

	t      testing.TB
	last   *pb.WatchRingResponse
	cancel context.CancelFunc
}

func watch(t testing.TB, client pb.DiagnosticsServiceClient, ring string) *watcher {
	t.Helper()

	ctx, cancel := context.WithTimeout(t.Context(), 4*patience) // TestSlowReader makes many changes meanwhile
	t.Cleanup(cancel)

	stream, err := client.WatchRing(ctx, &pb.WatchRingRequest{Name: ring})
	require.NoError(t, err)

	return &watcher{DiagnosticsService_WatchRingClient: stream, t: t, cancel: cancel}
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

// TestSlowReaderGetsTheLastState does not read while a ring changes 200 times, each time with a message of 32 KiB.
func TestSlowReaderGetsTheLastState(t *testing.T) {
	const changes = 200

	s := startServer(t)
	ring, ns := s.makeRing(configMaps())
	s.condition(ring, strings.Repeat("x", 32<<10))
	conn, err := grpc.NewClient(s.address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStaticStreamWindowSize(64<<10), grpc.WithStaticConnWindowSize(1<<20))
	require.NoError(t, err)

	defer func() { _ = conn.Close() }()

	slow := watch(t, pb.NewDiagnosticsServiceClient(conn), ring)
	quick := watch(t, s, ring)
	slow.next()
	quick.next()

	for i := range changes {
		shard := s.shard(ring, ns, fmt.Sprintf("shard-%03d", i%20))
		if i%40 < 20 {
			require.NoError(t, shard.Acquire(t.Context()))
		} else {
			require.NoError(t, shard.Release(t.Context()))
		}
	}
	require.NoError(t, s.shard(ring, ns, "the-last").Acquire(t.Context()))

	last := func(res *pb.WatchRingResponse) bool { return slices.Contains(available(res), "the-last") }
	end := quick.until(last)
	require.GreaterOrEqual(t, end.GetRevision(), int64(changes+1), "each write is a change")

	got, gap := 0, int64(0)
	before := slow.last.GetRevision()
	res := slow.until(func(res *pb.WatchRingResponse) bool {
		got++
		gap = max(gap, res.GetRevision()-before)
		before = res.GetRevision()

		return last(res)
	})
	require.Equal(t, available(end), available(res))
	require.Equal(t, end.GetRing().GetFingerprint(), res.GetRing().GetFingerprint())
	require.Less(t, got, changes/2, "what the reader was too slow for was left out")
	require.Greater(t, gap, int64(changes/2))
	t.Logf("%d messages for %d changes", got, changes)
}

// TestAgesOfRenewals verifies that ages are measured with the clock of the server, regardless of the times in the
// Lease.
func TestAgesOfRenewals(t *testing.T) {
	s := startServer(t)
	ring, ns := s.makeRing(configMaps())
	s.makeShards(ring, ns, "a")

	shard := func() *pb.Shard { return s.ring(ring).GetShards()[0] }

	require.True(t, shard().GetAgeIsLowerBound())
	age := shard().GetRenewalAge().AsDuration()
	require.Eventually(t, func() bool { return shard().GetRenewalAge().AsDuration() > age+time.Second }, patience,
		interval, "it grows")
	s.label(ns, "a", "ready")
	require.Eventually(t, func() bool { return shard().GetState() == pb.ShardState_SHARD_STATE_READY }, patience, interval)
	require.True(t, shard().GetAgeIsLowerBound(), "a label is no renewal")

	age = shard().GetRenewalAge().AsDuration()
	require.NoError(t, s.shard(ring, ns, "a").Renew(t.Context()))
	require.Eventually(t, func() bool {
		now := shard()
		return !now.GetAgeIsLowerBound() && now.GetRenewalAge().AsDuration() < age
	}, patience, interval)

	// A server that has just started has not seen the renewal.
	other := startServer(t)
	require.True(t, other.ring(ring).GetShards()[0].GetAgeIsLowerBound())
}

// labelled returns the spec of a ring of ConfigMaps with a label of its own.
func labelled(label string) v1alpha1.ClusterRingSpec {
	spec := configMaps()
	spec.ShardLabel = label

	return spec
}

// joinAs makes a shard hold its Lease, and announce a label.
func (s *server) joinAs(ring, namespace, name, label string) {
	s.t.Helper()

	shard := s.shard(ring, namespace, name)
	shard.ShardLabel = label
	require.NoError(s.t, shard.Acquire(s.t.Context()))
	require.Eventually(s.t, func() bool { return s.ring(ring).GetRing().GetAvailableShards() > 0 }, patience, interval)
}

// TestOwnLabel: answers follow the label of the ring, and not the default one.
func TestOwnLabel(t *testing.T) {
	s := startServer(t)
	s.grant()

	const label = "own.example.com/shard"

	ring, ns := s.makeRing(labelled(label))
	s.joinAs(ring, ns, "a", label)

	s.configMap(ns, "assigned", map[string]string{label: "a"})
	s.configMap(ns, "draining", map[string]string{label: "a", label + "-drain": "true"})
	s.configMap(ns, "default", map[string]string{contract.ShardLabel(ring): "a"})

	states := map[string]pb.AssignmentState{}
	for _, a := range s.list(&pb.ListAssignmentsRequest{Ring: ring, Resource: "configmaps", Namespace: ns}) {
		states[a.GetName()] = a.GetState()
	}

	require.Equal(t, pb.AssignmentState_ASSIGNMENT_STATE_ASSIGNED, states["assigned"])
	require.Equal(t, pb.AssignmentState_ASSIGNMENT_STATE_DRAINING, states["draining"])
	require.Equal(t, pb.AssignmentState_ASSIGNMENT_STATE_UNASSIGNED, states["default"])
	require.Len(t, s.list(&pb.ListAssignmentsRequest{Ring: ring, Resource: "configmaps", Namespace: ns, Shard: "a"}), 2)

	require.Equal(t, "a", s.locate(&pb.LocateRequest{Ring: ring,
		Object: &pb.ObjectReference{Type: &pb.ObjectReference_Kind{Kind: "ConfigMap"}, Namespace: ns,
			Name: "assigned"}}).GetShard())
	require.Equal(t, hashring.New([]string{"a"}).Fingerprint(), s.ring(ring).GetRing().GetFingerprint())

	explained, err := s.Explain(t.Context(),
		&pb.ExplainRequest{Object: &pb.ObjectReference{Type: &pb.ObjectReference_Kind{Kind: "ConfigMap"}, Namespace: ns,
			Name: "default"}})
	require.NoError(t, err)
	require.Contains(t, reasons(explained), "UNKNOWN_RING_LABEL", "no ring has the default label of this ring")
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

	first, ns := s.makeRing(labelled(label))
	second, ns2 := s.makeRing(labelled(label))
	s.joinAs(first, ns, "shard-1", label)
	s.joinAs(second, ns2, "shard-2", label)

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
