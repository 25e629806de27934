package ringquery_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
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

func TestGetRingShowsWhatTheRingDeclares(t *testing.T) {
	s := startServer(t)
	spec := configMaps()
	spec.Resources = append(spec.Resources, v1alpha1.RingResource{Group: "example.com", Resource: "foos"})
	name, _ := s.makeRing(spec)

	ring := s.ring(name).GetRing()
	require.Equal(t, name, ring.GetName())
	require.Equal(t, "kubernetes.io/metadata.name notin (kube-node-lease,kube-public,kube-system,sharding-system)", ring.GetNamespaceSelector())
	require.WithinRange(t, ring.GetCreateTime().AsTime(), time.Unix(1, 0), time.Unix(1<<40, 0))
	require.Len(t, ring.GetFingerprint(), 16)
	require.Empty(t, ring.GetConditions())

	var resources []string
	for _, r := range ring.GetResources() {
		resources = append(resources, r.GetResource()+"/"+r.GetKind()+"/"+r.GetRole().String())
	}
	require.Equal(t, []string{"configmaps/ConfigMap/ROLE_MAIN", "secrets/Secret/ROLE_CONTROLLED", "foos//ROLE_MAIN"}, resources)
}

func TestGetRingShowsItsShards(t *testing.T) {
	s := startServer(t)
	name, ns := s.makeRing(configMaps())
	empty := s.ring(name).GetRing().GetFingerprint()
	s.makeShards(name, ns, "a", "b", "c")

	gone := s.shard(name, ns, "gone")
	gone.Duration = 30 * time.Second
	require.NoError(t, gone.Acquire(t.Context()))
	lease, err := gone.Lease(t.Context())
	require.NoError(t, err)

	lease.Spec.HolderIdentity, lease.Labels[contract.LabelState] = nil, "dead"
	require.NoError(t, s.plane.Client.Update(t.Context(), lease))
	s.label(ns, "a", "uncertain")
	require.Eventually(t, func() bool {
		shards := s.ring(name).GetShards()
		return len(shards) == 4 && shards[0].GetState() == pb.ShardState_SHARD_STATE_UNCERTAIN && shards[3].GetHolder() == ""
	}, patience, interval)

	res := s.ring(name)
	require.EqualValues(t, 4, res.GetRing().GetShards())
	require.EqualValues(t, 3, res.GetRing().GetAvailableShards())
	require.NotEqual(t, empty, res.GetRing().GetFingerprint())

	var (
		partitions int32
		share      float64
	)

	for _, shard := range res.GetShards()[:3] {
		require.True(t, shard.GetAvailable())
		require.Equal(t, ns, shard.GetNamespace())
		require.Equal(t, shard.GetName(), shard.GetHolder())
		require.InDelta(t, 1.0/3, shard.GetShare(), 0.02)
		partitions += shard.GetPartitions()
		share += shard.GetShare()
	}
	require.EqualValues(t, 16384, partitions)
	require.InDelta(t, 1, share, 1e-9)

	dead := res.GetShards()[3]
	require.Equal(t, "gone", dead.GetName())
	require.False(t, dead.GetAvailable())
	require.Equal(t, pb.ShardState_SHARD_STATE_DEAD, dead.GetState())
	require.Equal(t, 30*time.Second, dead.GetLeaseDuration().AsDuration())
	require.Zero(t, dead.GetPartitions())
	require.Zero(t, dead.GetShare())
}

// label writes a state on a Lease, as the lease monitor does.
func (s *server) label(namespace, name, state string) {
	s.t.Helper()

	lease, err := s.shard("", namespace, name).Lease(s.t.Context())
	require.NoError(s.t, err)

	patch := []byte(`{"metadata":{"labels":{"` + contract.LabelState + `":"` + state + `"}}}`)
	require.NoError(s.t, s.plane.Client.Patch(s.t.Context(), lease, client.RawPatch(types.MergePatchType, patch)))
}

func TestGetRingShowsProblemsAndConditions(t *testing.T) {
	s := startServer(t)
	name, ns := s.makeRing(configMaps())
	other := s.plane.Namespace(t)
	require.NoError(t, s.shard(name, ns, "twice").Acquire(t.Context()))
	require.NoError(t, s.shard(name, other, "twice").Acquire(t.Context()))

	ring := &v1alpha1.ClusterRing{}
	require.NoError(t, s.plane.Client.Get(t.Context(), types.NamespacedName{Name: name}, ring))

	at := metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	ring.Status.Conditions = []metav1.Condition{
		{Type: "Ready", Status: "False", Reason: "ReconciliationFailed", Message: "why", LastTransitionTime: at, ObservedGeneration: 1},
		{Type: "Assigned", Status: "Unknown", Reason: "Unknown", LastTransitionTime: at},
	}
	require.NoError(t, s.plane.Client.Status().Update(t.Context(), ring))
	require.Eventually(t, func() bool {
		return len(s.ring(name).GetShards()) == 2 && len(s.ring(name).GetRing().GetConditions()) == 2
	}, patience, interval)

	res := s.ring(name)
	for _, shard := range res.GetShards() {
		require.False(t, shard.GetAvailable())
		require.Contains(t, shard.GetProblem(), "held in the namespaces")
	}

	conditions := res.GetRing().GetConditions()
	require.Equal(t, "Assigned", conditions[0].GetType())
	require.Equal(t, "Ready", conditions[1].GetType())
	require.Equal(t, "False", conditions[1].GetStatus())
	require.Equal(t, "ReconciliationFailed", conditions[1].GetReason())
	require.Equal(t, "why", conditions[1].GetMessage())
	require.Equal(t, at.UTC(), conditions[1].GetLastTransitionTime().AsTime())
	require.EqualValues(t, 1, conditions[1].GetObservedGeneration())
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

func TestGetRingFailures(t *testing.T) {
	s := startServer(t)

	for name, want := range map[string]codes.Code{
		"no-such-ring": codes.NotFound,
		"":             codes.InvalidArgument,
		"No Name":      codes.InvalidArgument,
	} {
		_, err := s.GetRing(t.Context(), &pb.GetRingRequest{Name: name})
		require.Equal(t, want, status.Code(err), "%q: %v", name, err)
	}

	_, err := s.ListRings(t.Context(), &pb.ListRingsRequest{PageSize: -1})
	require.Equal(t, codes.InvalidArgument, status.Code(err))
}
