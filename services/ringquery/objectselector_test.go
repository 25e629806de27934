package ringquery_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
)

// The ring shards the ConfigMaps of one tenant. No answer counts another, unless it still has a label of the ring.
func TestRingOverPartOfAKind(t *testing.T) {
	s := startServer(t)
	s.grant()

	ns := s.plane.Namespace(t)
	spec := configMaps()
	spec.NamespaceSelector = in(ns)
	spec.ObjectSelector = &metav1.LabelSelector{MatchLabels: map[string]string{tenant: "acme"}}
	ring, of := s.makeRing(spec)
	s.makeShards(ring, of, "a", "b")

	s.configMap(ns, "ours", map[string]string{tenant: "acme"})
	s.configMap(ns, "theirs", map[string]string{tenant: "beta"})
	s.configMap(ns, "left", map[string]string{tenant: "beta", contract.ShardLabel(ring): "a"})

	got, err := s.GetRing(t.Context(), &pb.GetRingRequest{Name: ring})
	require.NoError(t, err)
	require.Equal(t, tenant+"=acme", got.GetRing().GetObjectSelector())

	list, err := s.ListAssignments(t.Context(), &pb.ListAssignmentsRequest{Ring: ring, Resource: "configmaps", Namespace: ns})
	require.NoError(t, err)

	states := map[string]pb.AssignmentState{}
	for _, a := range list.GetAssignments() {
		states[a.GetName()] = a.GetState()
	}

	require.Equal(t, map[string]pb.AssignmentState{
		"ours": pb.AssignmentState_ASSIGNMENT_STATE_UNASSIGNED, "left": pb.AssignmentState_ASSIGNMENT_STATE_FOREIGN,
	}, states)

	sim, err := s.Simulate(t.Context(), &pb.SimulateRequest{Ring: ring, Add: []string{"c"}, CountObjects: true})
	require.NoError(t, err)
	require.EqualValues(t, 1, sim.GetCounted()[0].GetObjects())

	ask := func(name string, labels map[string]string) error {
		_, err := s.Locate(t.Context(), &pb.LocateRequest{Ring: ring, Object: byKind("ConfigMap", ns, name), Labels: labels})
		return err
	}

	require.NoError(t, ask("ours", nil))
	require.NoError(t, ask("not-there", map[string]string{tenant: "acme"}))
	require.ErrorContains(t, ask("theirs", nil), "is not selected by spec.objectSelector")
	require.ErrorContains(t, ask("not-there", map[string]string{tenant: "beta"}), "is not selected by spec.objectSelector")
	require.Equal(t, codes.FailedPrecondition, status.Code(ask("not-there", nil)))
}
