package ringquery_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/hashring"
	"github.com/clusterring/clusterring/services/internal/key"
)

// explaining is a ring with the shards a and b, and a server that explains its objects.
type explaining struct {
	*server

	name, ns string
	table    *hashring.Table
}

func startExplaining(t *testing.T, spec v1alpha1.ClusterRingSpec, shards ...string) *explaining {
	t.Helper()

	x := &explaining{server: startServer(t), table: hashring.New(shards)}
	x.grant()
	x.name, x.ns = x.makeRing(spec)
	x.makeShards(x.name, x.ns, shards...)
	x.report(x.name)

	return x
}

// report writes the status of a healthy ring.
func (x *explaining) report(ring string) {
	x.t.Helper()

	r := &v1alpha1.ClusterRing{}
	require.NoError(x.t, x.plane.Client.Get(x.t.Context(), types.NamespacedName{Name: ring}, r))

	r.Status.Assignment = &v1alpha1.AssignmentStatus{}
	for kind, reason := range map[string]string{
		v1alpha1.ConditionAssigned:          v1alpha1.ReasonAllAssigned,
		v1alpha1.ConditionWebhookRegistered: v1alpha1.ReasonRegistered,
	} {
		r.Status.Conditions = append(r.Status.Conditions, metav1.Condition{
			Type: kind, Status: metav1.ConditionTrue, Reason: reason, LastTransitionTime: metav1.Now(),
		})
	}
	require.NoError(x.t, x.plane.Client.Status().Update(x.t.Context(), r))
	require.Eventually(x.t, func() bool { return len(x.ring(ring).GetRing().GetConditions()) == 2 }, patience, interval)
}

// at returns the labels of an object at a shard.
func (x *explaining) at(shard string) map[string]string {
	return map[string]string{contract.ShardLabel(x.name): shard}
}

// explain explains an object in the ring.
func (x *explaining) explain(object *pb.ObjectReference) *pb.ExplainResponse {
	x.t.Helper()

	res, err := x.Explain(x.t.Context(), &pb.ExplainRequest{Object: object, Ring: x.name})
	require.NoError(x.t, err)

	return res
}

// TestExplainInARing covers what is read about an object: its labels, who wrote them, and its owner.
func TestExplainInARing(t *testing.T) {
	spec := configMaps()
	spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "blue"}}
	x := startExplaining(t, spec, "a", "b")
	names := namesAt(x.table, x.ns, "b", 2)
	assigned, draining := names[0], names[1]

	x.team(x.ns, "red")
	owner := x.configMap(x.ns, assigned, x.at("b"))
	res := x.explain(byKind("ConfigMap", x.ns, assigned))
	require.Equal(t, []string{"NAMESPACE_NOT_SELECTED"}, reasons(res))
	require.Contains(t, res.GetFindings()[0].GetMessage(), "team=red")

	x.team(x.ns, "blue") // labels are read anew for each question
	res = x.explain(byKind("ConfigMap", x.ns, assigned))
	require.Equal(t, []string{"ASSIGNED"}, reasons(res))
	require.True(t, res.GetHealthy())
	require.Equal(t, pb.Found_FOUND_YES, res.GetObject().GetFound())
	require.NotEmpty(t, res.GetObject().GetUid())
	require.Positive(t, res.GetObject().GetCreateTime().AsTime().Unix())
	require.Equal(t, "b", res.GetRings()[0].GetDesiredShard().GetName())
	require.Equal(t, "b", res.GetRings()[0].GetActualShard().GetHolder())

	located := x.locate(&pb.LocateRequest{Ring: x.name, Object: byKind("ConfigMap", x.ns, assigned)})
	require.Equal(t, pb.NamespaceCoverage_NAMESPACE_COVERAGE_UNKNOWN, located.GetNamespaceCoverage())
	located.NamespaceCoverage = pb.NamespaceCoverage_NAMESPACE_COVERAGE_COVERED // which Explain knows
	require.Equal(t, located.String(), res.GetRings()[0].GetLocation().String())

	child := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: x.ns, Name: "child", Labels: x.at("a")}}
	child.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(owner,
		corev1.SchemeGroupVersion.WithKind("ConfigMap"))}
	require.NoError(t, x.plane.Client.Create(t.Context(), child))
	res = x.explain(byKind("Secret", x.ns, "child"))
	require.Equal(t, []string{"OWNER_ELSEWHERE"}, reasons(res))
	require.Equal(t, "ConfigMap/"+assigned, res.GetObject().GetController())
	require.Equal(t, "b", res.GetRings()[0].GetOwner().GetShard())

	object := x.configMap(x.ns, draining, x.at("a"))
	patch := fmt.Sprintf(`{"metadata":{"labels":{%q:"true"}}}`, contract.DrainLabel(x.name))
	require.NoError(t, x.plane.Client.Patch(t.Context(), object, client.RawPatch(types.MergePatchType, []byte(patch)),
		client.FieldOwner("rebalancer")))
	res = x.explain(byKind("ConfigMap", x.ns, draining))
	require.Equal(t, []string{"DRAIN_PENDING"}, reasons(res))
	require.False(t,
		res.GetRings()[0].GetAssignment().GetDrainTime().AsTime().Before(res.GetObject().GetCreateTime().AsTime()))

	// The service may read namespaces, and no ring lists them.
	res, err := x.Explain(t.Context(), &pb.ExplainRequest{Object: byKind("Namespace", "", x.ns)})
	require.NoError(t, err)
	require.Equal(t, []string{"NOT_SHARDED"}, reasons(res))

	res, err = x.Explain(t.Context(), &pb.ExplainRequest{Object: byResource("serviceaccounts", x.ns, "any")})
	require.NoError(t, err)
	require.Equal(t, pb.Found_FOUND_FORBIDDEN, res.GetObject().GetFound())
	require.Equal(t, "NOT_SHARDED", res.GetFindings()[0].GetReason())

	_, err = x.Explain(t.Context(), &pb.ExplainRequest{Object: byKind("ConfigMap", x.ns, "not-there")})
	require.Equal(t, codes.NotFound, status.Code(err))
	require.ErrorContains(t, err, "read configmaps "+x.ns+"/not-there: no such object")
	_, err = x.Explain(t.Context(), &pb.ExplainRequest{Object: byResource("configmap", x.ns, "x")})
	require.Equal(t, codes.FailedPrecondition, status.Code(err))
	require.ErrorContains(t, err, "did you mean configmaps?")
}

// TestExplainTwoRings uses cluster-scoped objects, which no other ring in these tests shards.
func TestExplainTwoRings(t *testing.T) {
	spec := v1alpha1.ClusterRingSpec{Resources: []v1alpha1.RingResource{{Group: "scheduling.k8s.io",
		Resource: "priorityclasses"}}}
	x := startExplaining(t, spec, "a", "b")
	two := x.name + "-two" // the order of names is that of the answer
	r := &v1alpha1.ClusterRing{ObjectMeta: metav1.ObjectMeta{Name: two}, Spec: spec}
	require.NoError(t, x.plane.Client.Create(t.Context(), r))
	t.Cleanup(func() { _ = x.plane.Client.Delete(context.WithoutCancel(t.Context()), r) })
	x.waitRing(two)
	x.makeShards(two, x.ns, "z")
	x.report(two)

	var name string
	for i := 0; name == ""; i++ {
		candidate := fmt.Sprint(x.ns, "-", i)
		if owner, _ := x.table.Owner(key.Key{Group: "scheduling.k8s.io", Kind: "PriorityClass",
			Name: candidate}.Hash()); owner == "b" {
			name = candidate
		}
	}

	labels := x.at("b")
	labels[contract.ShardLabel(two)] = "gone"
	object := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Value: 1}
	require.NoError(t, x.plane.Client.Create(t.Context(), object, client.FieldOwner("somebody")))
	t.Cleanup(func() { _ = x.plane.Client.Delete(context.WithoutCancel(t.Context()), object) })

	ref := &pb.ObjectReference{Group: "scheduling.k8s.io", Type: &pb.ObjectReference_Kind{Kind: "PriorityClass"},
		Name: name}
	res, err := x.Explain(t.Context(), &pb.ExplainRequest{Object: ref})
	require.NoError(t, err)
	require.Equal(t, []string{"SHARD_UNKNOWN", "SEVERAL_RINGS", "ASSIGNED", "LABEL_WRITER"}, reasons(res))
	require.Equal(t, two, res.GetFindings()[0].GetRing())
	require.Contains(t, res.GetFindings()[3].GetMessage(), `"somebody"`)

	one := x.explain(ref)
	require.Len(t, one.GetRings(), 1)
	require.NotContains(t, one.String(), two, "who asks about one ring learns nothing of others")
}

// TestExplainForbidden asks about an object that the service may not read: the answer is which permission is missing.
func TestExplainForbidden(t *testing.T) {
	x := startExplaining(t, v1alpha1.ClusterRingSpec{Resources: []v1alpha1.RingResource{{Resource: "services"}}}, "a", "b")
	_, err := x.Explain(t.Context(), &pb.ExplainRequest{Object: byKind("Service", x.ns, "any"), Ring: x.name})
	require.Equal(t, codes.FailedPrecondition, status.Code(err))
	require.Equal(t, "NOT_READABLE", reason(err))
	require.ErrorContains(t, err, "this server may not read services "+x.ns+"/any: grant it get and list, by a "+
		"ClusterRole with the label sharding.timebertt.dev/aggregate-to-ringquery=true")
}

// TestExplainRemembersResources explains a resource that has left the ring but is still in its status.
func TestExplainRemembersResources(t *testing.T) {
	x := startExplaining(t, v1alpha1.ClusterRingSpec{Resources: []v1alpha1.RingResource{{Resource: "secrets"}}}, "a", "b")
	name := namesAt(x.table, x.ns, "b", 1)[0]
	x.configMap(x.ns, name, x.at("b"))

	ask := func() (*pb.ExplainResponse, error) {
		return x.Explain(t.Context(), &pb.ExplainRequest{Object: byKind("ConfigMap", x.ns, name), Ring: x.name})
	}
	_, err := ask()
	require.Equal(t, codes.FailedPrecondition, status.Code(err),
		"the object is not read for those who ask about a ring that does not list it")

	res, err := x.Explain(t.Context(), &pb.ExplainRequest{Object: byKind("ConfigMap", x.ns, name)})
	require.NoError(t, err)
	require.Contains(t, reasons(res), "STRAY_LABEL")

	r := &v1alpha1.ClusterRing{}
	require.NoError(t, x.plane.Client.Get(t.Context(), types.NamespacedName{Name: x.name}, r))

	r.Status.Assignment.Resources = nil
	for _, resource := range slices.Concat(configMaps().Resources, r.Spec.Resources) {
		r.Status.Assignment.Resources = append(r.Status.Assignment.Resources, v1alpha1.AssignedResource{
			Group: resource.Group, Resource: resource.Resource, ControlledResources: resource.ControlledResources,
			Key: resource.Key,
		})
	}
	require.NoError(t, x.plane.Client.Status().Update(t.Context(), r))
	require.Eventually(t, func() bool { res, err = ask(); return err == nil }, patience, interval)
	require.Equal(t, []string{"RESOURCE_LEFT"}, reasons(res))
}
