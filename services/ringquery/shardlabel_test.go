package ringquery_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/hashring"
)

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

	require.Equal(t, "a", s.locate(&pb.LocateRequest{Ring: ring, Object: &pb.ObjectReference{Type: &pb.ObjectReference_Kind{Kind: "ConfigMap"}, Namespace: ns, Name: "assigned"}}).GetShard())
	require.Equal(t, hashring.New([]string{"a"}).Fingerprint(), s.ring(ring).GetRing().GetFingerprint())

	explained, err := s.Explain(t.Context(), &pb.ExplainRequest{Object: &pb.ObjectReference{Type: &pb.ObjectReference_Kind{Kind: "ConfigMap"}, Namespace: ns, Name: "default"}})
	require.NoError(t, err)
	require.Contains(t, reasons(explained), "UNKNOWN_RING_LABEL", "no ring has the default label of this ring")

	// A shard that follows another label is no shard, and the answer says why.
	wrong := s.shard(ring, ns, "wrong")
	require.NoError(t, wrong.Acquire(t.Context()))
	require.Eventually(t, func() bool {
		for _, shard := range s.ring(ring).GetShards() {
			if shard.GetName() == "wrong" {
				require.False(t, shard.GetAvailable())
				require.Contains(t, shard.GetProblem(), "does not announce by which label")

				return true
			}
		}

		return false
	}, patience, interval)
}

func reasons(res *pb.ExplainResponse) (all []string) {
	for _, f := range res.GetFindings() {
		all = append(all, f.GetReason())
	}

	return all
}

// TestLabelInUse: of a ring whose label an older one uses, every answer says so, and none shows the labels of the other ring as its own.
func TestLabelInUse(t *testing.T) {
	s := startServer(t)
	s.grant()

	const label = "shared.example.com/shard"

	first, ns := s.makeRing(labelled(label))
	second, ns2 := s.makeRing(labelled(label))
	s.joinAs(first, ns, "shard-1", label)
	s.joinAs(second, ns2, "shard-2", label)

	older, younger := first, second
	if created := func(ring string) int64 { return s.ring(ring).GetRing().GetCreateTime().GetSeconds() }; created(first) == created(second) {
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
