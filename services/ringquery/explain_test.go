package ringquery_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

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

var update = flag.Bool("update", false, "rewrite testdata/explain")

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
	x.hold(x.name, shards...)
	x.report(x.name)

	return x
}

// hold lets shards hold their Leases for longer than the test takes.
func (x *explaining) hold(ring string, shards ...string) {
	x.t.Helper()

	for _, name := range shards {
		shard := x.shard(ring, x.ns, name)
		shard.Duration = time.Hour
		require.NoError(x.t, shard.Acquire(x.t.Context()))
	}
	require.Eventually(x.t, func() bool {
		return int(x.ring(ring).GetRing().GetAvailableShards()) == len(shards)
	}, patience, interval)
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

// golden compares an answer with testdata/explain, where placeholders replace the values that differ between runs.
func (x *explaining) golden(name string, res *pb.ExplainResponse, names ...string) {
	x.t.Helper()

	text := explanationText(res)

	replace := append(slices.Clone(names), contract.RingSuffix(x.name), "<suffix>", x.name, "<ring>", x.ns, "<namespace>")

	text = strings.NewReplacer(replace...).Replace(text)
	for pattern, placeholder := range map[string]string{
		`partition \d+`: "partition <partition>", `\d+ s (ago|old)`: "<age> $1", `\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`: "<time>",
	} {
		text = regexp.MustCompile(pattern).ReplaceAllString(text, placeholder)
	}

	path := filepath.Join("testdata", "explain", name+".txt")
	if *update {
		require.NoError(x.t, os.WriteFile(path, []byte(text), 0o600))
	}

	want, err := os.ReadFile(path)
	require.NoError(x.t, err)
	require.Equal(x.t, string(want), text)
}

// explanationText renders an answer.
func explanationText(res *pb.ExplainResponse) string {
	var b strings.Builder

	o := res.GetObject()
	fmt.Fprintf(&b, "%s %s/%s (%s), %s, controller %q, deleting %t, healthy %t\n",
		o.GetResource(), o.GetNamespace(), o.GetName(), o.GetKind(), o.GetFound(), o.GetController(), o.GetDeleting(),
		res.GetHealthy())

	for _, f := range res.GetFindings() {
		fmt.Fprintf(&b, "\n%s %s %s\n%s\n", strings.TrimPrefix(f.GetSeverity().String(), "SEVERITY_"), f.GetReason(),
			f.GetRing(), f.GetMessage())

		if f.GetAdvice() != "" {
			fmt.Fprintf(&b, "→ %s\n", f.GetAdvice())
		}
	}

	for _, r := range res.GetRings() {
		a := r.GetAssignment()
		fmt.Fprintf(&b, "\nring %s: %s, covered %t\n  %s: at %q, belongs to %q, owner %q, drain time known %t\n", r.GetRing(),
			r.GetRole(), r.GetCovered(), a.GetState(), a.GetShard(), a.GetDesiredShard(), a.GetOwner(), a.GetDrainTime() != nil)

		if l := r.GetLocation(); l != nil {
			fmt.Fprintf(&b, "  location: %s, %s, next %v\n", l.GetShard(), l.GetNamespaceCoverage(), l.GetNextShards())
		}

		if s := r.GetActualShard(); s != nil {
			fmt.Fprintf(&b, "  actual shard: %q, holder %q, available %t\n", s.GetName(), s.GetHolder(), s.GetAvailable())
		}

		if w := r.GetOwner(); w != nil {
			fmt.Fprintf(&b, "  owner %s %s/%s: %s, at %q, draining %t\n", w.GetResource(), w.GetNamespace(), w.GetName(),
				w.GetFound(), w.GetShard(), w.GetDraining())
		}
		fmt.Fprintf(&b, "  %s by %q\n", r.GetNext(), r.GetNextActor())
	}

	return b.String()
}

// TestExplainInARing covers what is read about an object: its labels, who wrote them, and its owner.
func TestExplainInARing(t *testing.T) {
	x := startExplaining(t, configMaps(), "a", "b")
	names := namesAt(x.table, x.ns, "b", 2)
	assigned, draining := names[0], names[1]

	owner := x.configMap(x.ns, assigned, x.at("b"))
	res := x.explain(byKind("ConfigMap", x.ns, assigned))
	x.golden("Assigned", res, assigned, "<name>")
	require.NotEmpty(t, res.GetObject().GetUid())
	require.Positive(t, res.GetObject().GetCreateTime().AsTime().Unix())
	require.Equal(t, "b", res.GetRings()[0].GetDesiredShard().GetName())

	located := x.locate(&pb.LocateRequest{Ring: x.name, Object: byKind("ConfigMap", x.ns, assigned)})
	require.Equal(t, located.String(), res.GetRings()[0].GetLocation().String())

	child := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: x.ns, Name: "child", Labels: x.at("a")}}
	child.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(owner,
		corev1.SchemeGroupVersion.WithKind("ConfigMap"))}
	require.NoError(t, x.plane.Client.Create(t.Context(), child))
	x.golden("ChildElsewhere", x.explain(byKind("Secret", x.ns, "child")), assigned, "<name>")

	object := x.configMap(x.ns, draining, x.at("a"))
	patch := fmt.Sprintf(`{"metadata":{"labels":{%q:"true"}}}`, contract.DrainLabel(x.name))
	require.NoError(t, x.plane.Client.Patch(t.Context(), object, client.RawPatch(types.MergePatchType, []byte(patch)),
		client.FieldOwner("rebalancer")))
	res = x.explain(byKind("ConfigMap", x.ns, draining))
	x.golden("DrainPending", res, draining, "<name>")
	require.False(t,
		res.GetRings()[0].GetAssignment().GetDrainTime().AsTime().Before(res.GetObject().GetCreateTime().AsTime()))

	// The service may read namespaces, and no ring lists them.
	res, err := x.Explain(t.Context(), &pb.ExplainRequest{Object: byKind("Namespace", "", x.ns)})
	require.NoError(t, err)
	x.golden("NotSharded", res)

	res, err = x.Explain(t.Context(), &pb.ExplainRequest{Object: byResource("serviceaccounts", x.ns, "any")})
	require.NoError(t, err)
	require.Equal(t, pb.Found_FOUND_FORBIDDEN, res.GetObject().GetFound())
	require.Equal(t, "NOT_SHARDED", res.GetFindings()[0].GetReason())
}

func TestExplainNamespaceNotSelected(t *testing.T) {
	spec := configMaps()
	spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "blue"}}
	x := startExplaining(t, spec, "a", "b")
	x.team(x.ns, "red")
	name := namesAt(x.table, x.ns, "b", 1)[0]
	x.configMap(x.ns, name, nil)
	x.golden("NamespaceNotSelected", x.explain(byKind("ConfigMap", x.ns, name)), name, "<name>")

	x.team(x.ns, "blue")
	res := x.explain(byKind("ConfigMap", x.ns, name))
	require.Equal(t, "UNASSIGNED", res.GetFindings()[0].GetReason(), "labels are read anew for each question")
	require.Equal(t, pb.NamespaceCoverage_NAMESPACE_COVERAGE_COVERED,
		res.GetRings()[0].GetLocation().GetNamespaceCoverage())
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
	x.hold(two, "z")
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
	x.golden("TwoRings", res, name, "<name>", two, "<other ring>")

	one := x.explain(ref)
	require.Len(t, one.GetRings(), 1)
	require.NotContains(t, explanationText(one), two, "who asks about one ring learns nothing of others")
}

// TestExplainForbidden explains what follows from the name of an object that the service may not read.
func TestExplainForbidden(t *testing.T) {
	x := startExplaining(t, v1alpha1.ClusterRingSpec{Resources: []v1alpha1.RingResource{{Resource: "services"}}}, "a", "b")
	ref := byKind("Service", x.ns, "any")
	located := x.locate(&pb.LocateRequest{Ring: x.name, Object: ref})
	res := x.explain(ref)
	require.Equal(t, located.GetShard(), res.GetRings()[0].GetLocation().GetShard())
	x.golden("Forbidden", res, "shard "+located.GetShard(), "shard <shard>", "location: "+located.GetShard(),
		"location: <shard>", fmt.Sprint(located.GetNextShards()), "[<shard>]")
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
	require.Contains(t, explanationText(res), "WARNING STRAY_LABEL "+x.name)

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
	x.golden("RemembersResources", res, name, "<name>")
}

// TestExplainFailures covers every error.
func TestExplainFailures(t *testing.T) {
	x := startExplaining(t, configMaps(), "a")

	for name, c := range map[string]struct {
		req  *pb.ExplainRequest
		code codes.Code
		want string
	}{
		"unknown ring": {&pb.ExplainRequest{Ring: "no-such-ring", Object: byKind("ConfigMap", x.ns, "x")}, codes.NotFound,
			"no-such-ring"},
		"not there": {&pb.ExplainRequest{Object: byKind("ConfigMap", x.ns, "x")}, codes.NotFound,
			"no such object: configmaps " + x.ns + "/x"},
		"not in ring": {&pb.ExplainRequest{Ring: x.name, Object: byKind("Pod", x.ns, "x")}, codes.FailedPrecondition,
			"does not list Pod"},
		"no such kind": {&pb.ExplainRequest{Object: byKind("Nothing", x.ns, "x")}, codes.FailedPrecondition,
			"the API server does not serve Nothing"},
		"no such thing": {&pb.ExplainRequest{Object: byResource("nothings", x.ns, "x")}, codes.FailedPrecondition,
			"the API server does not serve nothings"},
		"a part of one": {&pb.ExplainRequest{Object: byResource("configmap", x.ns, "x")}, codes.FailedPrecondition,
			"did you mean configmaps?"},
		"no namespace": {&pb.ExplainRequest{Object: byKind("ConfigMap", "", "x")}, codes.InvalidArgument,
			"configmaps have a namespace"},
		"one too many": {&pb.ExplainRequest{Object: byKind("Namespace", x.ns, "x")}, codes.InvalidArgument,
			"namespaces are cluster-scoped"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := x.Explain(t.Context(), c.req)
			require.Equal(t, c.code, status.Code(err), err)
			require.ErrorContains(t, err, c.want)
		})
	}
}
