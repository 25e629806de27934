package policies_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

// The assigner is asked about updates of objects with a shard only if they change the shard or the key.
func TestAssignerIsAskedAboutChangesOfLabels(t *testing.T) {
	p := newPolicies(t)
	assigner := p.service("assigner")

	p.describe(map[string]string{"namespaces." + p.ring.Name: p.shards})
	p.registrable(assigner)

	labels := func(expression string, change ...func(*admissionregistrationv1.MutatingWebhook)) configuration {
		return p.configuration(func(c configuration) {
			w := &c.Webhooks[0]
			w.Name = contract.LabelsWebhookName
			w.ObjectSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
				Key: contract.ShardLabel(p.ring.Name), Operator: metav1.LabelSelectorOpExists,
			}}}
			w.Rules[0].Operations = []admissionregistrationv1.OperationType{admissionregistrationv1.Update}
			w.Rules[0].Resources = append(w.Rules[0].Resources, w.Rules[0].Resources[0]+"/*")
			w.MatchConditions = []admissionregistrationv1.MatchCondition{{Name: "labels-change", Expression: expression}}

			for _, f := range change {
				f(w)
			}
		})
	}
	changes := func(keyed string) string {
		label := func(of, key string) string { return of + `.metadata.?labels[?"` + key + `"]` }
		was, is := label("oldObject", contract.ShardLabel(p.ring.Name)), label("object", contract.ShardLabel(p.ring.Name))
		next := label("oldObject", contract.DrainLabel(p.ring.Name))
		may := `authorizer.group("sharding.timebertt.dev").resource("clusterrings").name("` + p.ring.Name + `")`

		return `request.userInfo.username != "them" && (` + was + ` == ` + is + ` ? ` + keyed + ` : ` + was + `.orValue("") != "" && !(` + next +
			`.hasValue() && (!` + is + `.hasValue() || ` + next + ` == ` + is + `)) && !(` + may + `.check("relabel").allowed() && !` + may + `.check("*").allowed()))`
	}
	tenant := `(oldObject.metadata.?labels[?"example.com/tenant"] != object.metadata.?labels[?"example.com/tenant"])`
	only := "only be called for changes of the shard label of the ring, and of labels that it names as keys"

	require.NoError(t, creating(t, assigner, labels(changes("false")))())
	p.refused(creating(t, assigner, labels("true")), only)

	for _, prefix := range []string{`"a" != "b`, `true || request.userInfo.username != "them`,
		`request.userInfo.username != "" || "" == "`} {
		expression := strings.Replace(changes("false"), `request.userInfo.username != "them`, prefix, 1)
		p.refused(creating(t, assigner, labels(expression)), only)
	}

	p.refused(creating(t, assigner, labels(changes(tenant))), only)
	p.refused(creating(t, assigner, labels(changes("false"),
		func(w *admissionregistrationv1.MutatingWebhook) { w.Rules[0].Resources = []string{"pods/*"} })),
		"resources that the ring names")
	// two policies refuse it
	p.refused(creating(t, assigner, labels(changes("false"),
		func(w *admissionregistrationv1.MutatingWebhook) { w.Rules[0].Resources = []string{"*/*"} })), "resources")
	p.refused(creating(t, assigner,
		p.configuration(func(c configuration) { c.Webhooks[0].Rules[0].Resources[0] += "/*" })), "must name the resources")
	p.ring.Spec.Resources[0].Key = &v1alpha1.ObjectKey{Type: v1alpha1.KeyLabel, Label: "example.com/tenant"}
	require.NoError(t, p.Client.Update(t.Context(), p.ring))
	require.Eventually(t, func() bool { return creating(t, assigner, labels(changes(tenant)))() == nil }, time.Minute,
		50*time.Millisecond, "the policies should know the new key")
	p.refused(creating(t, assigner, labels(changes("false"))), only)
	p.refused(creating(t, assigner, labels(changes(tenant),
		func(w *admissionregistrationv1.MutatingWebhook) { w.ObjectSelector = nil })), only)
	p.refused(creating(t, assigner, labels(changes(tenant),
		func(w *admissionregistrationv1.MutatingWebhook) { w.ObjectSelector.MatchExpressions[0].Key = "app" })), only)
	p.refused(creating(t, assigner, labels(changes(tenant), func(w *admissionregistrationv1.MutatingWebhook) {
		w.Rules[0].Operations = []admissionregistrationv1.OperationType{admissionregistrationv1.Create}
	})), "only when objects are updated")
}

const ownLabel = "cloudapi.team-orca.dev/shard"

// labelled returns a ring with a spec.shardLabel.
func labelled(name, label string) *v1alpha1.ClusterRing {
	ring := ringOf(name, nil, v1alpha1.RingResource{Resource: "pods"})
	ring.Spec.ShardLabel = label

	return ring
}

// longestDomain is as long as the domain of a label key may be.
var longestDomain = strings.Repeat("a.", 126) + "a"

// TestShardLabels: the API server and the library for shards accept the same keys.
func TestShardLabels(t *testing.T) {
	p := localplane.Shared(t)

	for label, want := range map[string]string{
		ownLabel:                                 "",
		"a/B":                                    "",
		"example.com/Shard_1.x":                  "",
		"notkubernetes.io/shard":                 "",
		"kubernetes.io.example.com/shard":        "",
		"example.com/" + strings.Repeat("a", 54): "",
		longestDomain + "/" + strings.Repeat("a", 54): "",
		"example.com/drain":                           "",

		"shard":                                  "spec.shardLabel",
		"/shard":                                 "spec.shardLabel",
		"example.com/":                           "spec.shardLabel",
		"example.com/a/b":                        "spec.shardLabel",
		"Example.com/shard":                      "spec.shardLabel",
		"example..com/shard":                     "spec.shardLabel",
		"example.com/-shard":                     "spec.shardLabel",
		"example.com/sh ard":                     "spec.shardLabel",
		"example.com/" + strings.Repeat("a", 55): "-handover is added to the key",
		"a" + longestDomain + "/a":               "at most 253 characters",
		"kubernetes.io/shard":                    "use a domain of your own",
		"apps.kubernetes.io/shard":               "use a domain of your own",
		"k8s.io/shard":                           "use a domain of your own",
		"node.k8s.io/shard":                      "use a domain of your own",
		"sharding.timebertt.dev/shard":           "use a domain of your own",
		"shard.alpha.sharding.timebertt.dev/clusterring-50d858e0-example": "use a domain of your own",
		"example.com/shard-drain":    "could be one that follows from the shardLabel of another ring",
		"example.com/shard-handover": "could be one that follows from the shardLabel of another ring",
	} {
		t.Run(label, func(t *testing.T) {
			err := p.Client.Create(t.Context(), labelled("r", label), client.DryRunAll)
			problems := contract.ValidateShardLabel(label)

			if want == "" {
				require.NoError(t, err)
				require.Empty(t, problems)

				keys := contract.LabelKeysOf("r", label)
				for _, key := range []string{keys.Shard, keys.Drain, keys.Handover} {
					require.Empty(t, validation.IsQualifiedName(key))
				}

				return
			}

			require.ErrorContains(t, err, want)
			require.NotEmpty(t, problems)
		})
	}
}

// TestShardLabelIsImmutable: objects carry the label.
func TestShardLabelIsImmutable(t *testing.T) {
	p := localplane.Shared(t)

	for name, labels := range map[string][2]string{"added": {"", ownLabel}, "changed": {ownLabel, "example.com/other"},
		"removed": {ownLabel, ""}} {
		t.Run(name, func(t *testing.T) {
			ring := labelled("immutable-"+name, labels[0])
			require.NoError(t, p.Client.Create(t.Context(), ring))
			t.Cleanup(func() { require.NoError(t, p.Client.Delete(context.WithoutCancel(t.Context()), ring)) })

			ring.Spec.ActiveShards = new(int32(1))
			require.NoError(t, p.Client.Update(t.Context(), ring), "anything else may change")

			ring.Spec.ShardLabel = labels[1]
			require.ErrorContains(t, p.Client.Update(t.Context(), ring), "spec.shardLabel cannot be added, changed, or removed")
		})
	}
}

func TestShardNames(t *testing.T) {
	p := localplane.Shared(t)
	many := make([]string, 1001)

	for i := range many {
		many[i] = fmt.Sprint("shard-", i)
	}

	for name, tc := range map[string]struct {
		names []string
		want  string
	}{
		"valid":    {[]string{"blue", "green-1", "a.b"}, ""},
		"most":     {many[:1000], ""},
		"too many": {many, "must have at most 1000 items"},
		"twice":    {[]string{"blue", "blue"}, "Duplicate value"},
		"capitals": {[]string{"Blue"}, "spec.shardNames[0]"},
		"empty":    {[]string{""}, "spec.shardNames[0]"},
		"long":     {[]string{strings.Repeat("a", 64)}, "spec.shardNames[0]"},
		"reserved": {[]string{contract.LeaseControllerIdentity}, "signs Leases that it has taken"},
	} {
		t.Run(name, func(t *testing.T) {
			ring := labelled("r", "")
			ring.Spec.ShardNames = tc.names

			if err := p.Client.Create(t.Context(), ring, client.DryRunAll); tc.want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, tc.want)
			}
		})
	}
}

// TestNamedShardsAreSlots: of the Pods of a ring, any may hold a Lease with a name that the ring lists, one at a time.
func TestNamedShardsAreSlots(t *testing.T) {
	p := newPolicies(t)
	p.describe(map[string]string{"namespaces." + p.ring.Name: p.shards, "names." + p.ring.Name: "blue\ngreen"})

	named := func(name, pod string) *coordinationv1.Lease {
		return p.lease(p.shards, name,
			func(l *coordinationv1.Lease) { l.Annotations = map[string]string{contract.AnnotationPod: pod} })
	}
	a, b := p.as(p.shards, "default", "a"), p.as(p.shards, "default", "b")

	p.refused(creating(t, a, named("red", "a")), "list their names in spec.shardNames")
	p.refused(creating(t, a, named("blu", "a")), "only Pod blu of namespace")
	p.refused(creating(t, a, named("blue", "b")), "only Pod")
	p.refused(creating(t, a, p.lease(p.shards, "blue")), "only Pod")

	held := named("blue", "a")
	require.Eventually(t, func() bool { return a.Create(t.Context(), held) == nil }, soon, tick)
	require.NoError(t, patching(t, a, held, `{"spec":{"holderIdentity":""}}`)())
	p.refused(patching(t, b, held, `{"spec":{"renewTime":"2030-01-01T00:00:00.000000Z"}}`), "only Pod")
	require.NoError(t, patching(t, b, held, `{"metadata":{"annotations":{"`+contract.AnnotationPod+`":"b"}}}`)())

	// A Pod with this name that is no slot keeps its Lease.
	stateful := p.lease(p.shards, "green")
	require.NoError(t, p.as(p.shards, "default", "green").Create(t.Context(), stateful))
	p.refused(patching(t, b, stateful, `{"metadata":{"annotations":{"`+contract.AnnotationPod+`":"b"}}}`), "only Pod")
}

// TestShardsFollowTheLabelOfTheirRing: a shard that selects its objects by another label would do nothing, so it cannot
// hold its Lease.
func TestShardsFollowTheLabelOfTheirRing(t *testing.T) {
	p := newPolicies(t)
	pod := p.as(p.shards, "default", "a")
	says := func(label string) *coordinationv1.Lease {
		return p.lease(p.shards, "a", func(l *coordinationv1.Lease) {
			if label != "" {
				l.Annotations = map[string]string{contract.AnnotationShardLabel: label}
			}
		})
	}

	p.refused(creating(t, pod, says(ownLabel)),
		"shard a selects its objects by the label "+ownLabel+", but ring "+p.ring.Name+" has no spec.shardLabel")
	require.NoError(t, creating(t, pod, says(""))())
	require.NoError(t, creating(t, p.Client, says(ownLabel))(), "administrators of rings may")

	p.describe(map[string]string{"namespaces." + p.ring.Name: p.shards, "label." + p.ring.Name: ownLabel})
	p.refused(creating(t, pod, says("")),
		"shard a selects its objects by the default label, but ring "+p.ring.Name+" has spec.shardLabel "+ownLabel)
	p.refused(creating(t, pod, says("example.com/other")),
		"by the label example.com/other, but ring "+p.ring.Name+" has spec.shardLabel "+ownLabel)

	held := says(ownLabel)
	require.NoError(t, pod.Create(t.Context(), held))
	require.NoError(t, patching(t, pod, held, `{"spec":{"holderIdentity":""}}`)())
	p.refused(patching(t, pod, held, `{"metadata":{"annotations":null}}`), "by the default label")

	// A ring that does not exist says nothing.
	require.NoError(t, creating(t, p.as(p.shards, "default", "b"), p.lease(p.shards, "b", func(l *coordinationv1.Lease) {
		l.Labels[contract.LabelClusterRing] = "none"
		l.Annotations = map[string]string{contract.AnnotationShardLabel: ownLabel}
	}))())
}

// TestRebalancerNeedsPermissionForOtherLabels: everyone who may create a ring cannot make the rebalancer change a label
// of somebody else.
func TestRebalancerNeedsPermissionForOtherLabels(t *testing.T) {
	p := newPolicies(t)
	rebalancer := p.service("rebalancer")
	label := p.shards + ".example.com/shard"
	role := p.movable("", "configmaps")

	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: p.tenant, Name: "object",
		Labels: map[string]string{"app": "a"}}}
	p.create(object)

	own := `{"metadata":{"labels":{"` + label + `":"a","` + label + `-drain":"true"},"annotations":{"` + label + `-handover":"{}"}}}`
	p.refused(patching(t, rebalancer, object, own),
		"if "+label+" is spec.shardLabel of a ring, grant the verb write on shardlabels.sharding.timebertt.dev with this name")
	p.refused(patching(t, rebalancer, object, `{"metadata":{"annotations":{"`+label+`-handover":"{}"}}}`),
		"may not change annotation "+label+"-handover; ")

	p.labelling(role, label)
	require.Eventually(t, func() bool { return patching(t, rebalancer, object, own)() == nil }, soon, tick)
	require.NoError(t, patching(t, rebalancer, object, `{"metadata":{"labels":{"`+label+`-drain":"true"}}}`)())
	require.NoError(t, patching(t, rebalancer, object, `{"metadata":{"annotations":{"`+label+`-handover":"{}"}}}`)())

	for patch, message := range map[string]string{
		`{"metadata":{"labels":{"` + label + `":"a","app":"b"}}}`: "may not change label " + label +
			", label app;",
		`{"metadata":{"labels":{"` + label + `":"a","example.com/other":"b"}}}`: "label example.com/other",
		`{"metadata":{"labels":{"` + label + `":"a"},"annotations":{"x":"y"}}}`: "may not change annotation x;",
		`{"metadata":{"labels":{"` + label + `-handover":"a"}}}`: "may not change label " +
			label + "-handover;",
		`{"metadata":{"annotations":{"` + label + `":"a"}}}`: "may not change annotation " +
			label + ";",
		`{"metadata":{"labels":{"` + label + `":"a"}},"data":{"k":"v"}}`:               "may not change data;",
		`{"metadata":{"labels":{"` + label + `":"a"},"finalizers":["example.com/x"]}}`: "may not change finalizer example.com/x;",
	} {
		p.refused(patching(t, rebalancer, object, patch), message)
	}

	p.refused(patching(t, rebalancer, p.ring, own), "may not change label")
}

// TestWebhooksSelectByTheLabelOfTheirRing: otherwise, a ring's webhook would be called for objects that have a shard.
func TestWebhooksSelectByTheLabelOfTheirRing(t *testing.T) {
	p := newPolicies(t)
	assigner := p.service("assigner")
	selects := func(key string) func(configuration) {
		return func(c configuration) {
			c.Webhooks[0].ObjectSelector.MatchExpressions[0].Key = key
		}
	}

	p.describe(map[string]string{"namespaces." + p.ring.Name: p.shards, "namespaces.own-" + p.shards: ""})
	p.registrable(assigner)
	p.refused(creating(t, assigner, p.configuration(selects(ownLabel))),
		"must select only objects without a shard of the ring")

	own := labelled("own-"+p.shards, "own."+ownLabel)
	own.Spec.Resources[0].Resource = "configmaps"
	p.create(own)
	t.Cleanup(func() { require.NoError(t, p.Client.Delete(context.WithoutCancel(t.Context()), own)) })

	guarded := p.ring
	p.ring = own

	defer func() { p.ring = guarded }()

	p.refused(creating(t, assigner, p.configuration()), "must select only objects without a shard of the ring")
	p.refused(creating(t, assigner, p.configuration(selects(ownLabel))),
		"must select only objects without a shard of the ring")

	err := creating(t, assigner, p.configuration(selects("own."+ownLabel)))()
	require.False(t, apierrors.IsForbidden(err), err)
	require.NoError(t, err)
}

const (
	ours           = "rebalancer-test" // the manager of the rebalancer
	rebalancerName = "system:serviceaccount:sharding-system:rebalancer"
)

// mutated are policies with objects that admission changes whenever somebody writes them.
type mutated struct {
	*policies
	rebalancer             client.Client
	shard, drain, handover string
	own                    string // the label of a ring with spec.shardLabel, which the rebalancer may write
}

func newMutated(t *testing.T) *mutated {
	t.Helper()

	p := newPolicies(t)
	own := p.shards + ".example.com/shard"
	require.NoError(t, p.Install(t.Context(), "tools/lab/policies/testdata/gadgets.yaml"))
	p.labelling(p.movable("mutated.example.com", "gadgets"), own)

	m := &mutated{
		policies: p, rebalancer: p.service("rebalancer"),
		shard: contract.ShardLabel(p.ring.Name), drain: contract.DrainLabel(p.ring.Name),
		handover: contract.HandoverAnnotation(p.ring.Name),
		own:      own,
	}

	// The policy counts from some moment on.
	require.Eventually(t, func() bool { return m.object().GetAnnotations()["example.org/last-modified-by"] != "" },
		soon, tick)

	return m
}

// object returns an object of a shard in which nobody manages some of the fields.
func (m *mutated) object() *unstructured.Unstructured {
	m.t.Helper()

	u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"theme": "light", "atomic": []any{"a"}, "map": map[string]any{"k": "v"}, "free": map[string]any{"list": []any{"x"}},
		"rules": []any{map[string]any{"name": "one", "value": "1"}, map[string]any{"name": "two", "value": "2"}},
	}}}
	u.SetGroupVersionKind(schema.GroupVersionKind{Group: "mutated.example.com", Version: "v1", Kind: "Gadget"})
	u.SetNamespace(m.tenant)
	u.SetGenerateName("object-")
	u.SetLabels(map[string]string{"app": "a", m.shard: "dead"})
	u.SetAnnotations(map[string]string{"note": "n"})
	// The policy that changes objects fails until the API server knows their type.
	require.Eventually(m.t,
		func() bool { return m.Client.Create(m.t.Context(), u, client.FieldOwner("kubectl-create")) == nil }, 2*soon, tick)

	return u
}

// with returns the content of a request: metadata, and more fields.
func with(metadata, more map[string]any) map[string]any {
	content := map[string]any{"metadata": map[string]any{}}
	maps.Copy(content["metadata"].(map[string]any), metadata)
	maps.Copy(content, more)

	return runtime.DeepCopyJSON(content)
}

// apply applies content as a manager, on the condition that the object has not changed.
func (m *mutated) apply(c client.Client, u *unstructured.Unstructured, manager string, content map[string]any) error {
	metadata := content["metadata"].(map[string]any)
	metadata["name"], metadata["namespace"] = u.GetName(), u.GetNamespace()
	metadata["resourceVersion"] = u.GetResourceVersion()
	content["apiVersion"], content["kind"] = u.GetAPIVersion(), u.GetKind()

	return c.Patch(m.t.Context(), u, client.RawPatch(types.ApplyPatchType, encoded(m.t, content)),
		client.FieldOwner(manager), client.ForceOwnership)
}

func (m *mutated) patch(c client.Client, u *unstructured.Unstructured, content map[string]any) error {
	return c.Patch(m.t.Context(), u, client.RawPatch(types.MergePatchType, encoded(m.t, content)), client.FieldOwner(ours))
}

func encoded(t *testing.T, v any) []byte {
	t.Helper()

	b, err := json.Marshal(v)
	require.NoError(t, err)

	return b
}

// metadata returns labels and a handover annotation.
func (m *mutated) metadata(handover string, labels map[string]any) map[string]any {
	return map[string]any{"labels": labels, "annotations": map[string]any{m.handover: handover}}
}

// crafts sends managed fields with a patch.
func (m *mutated) crafts(c client.Client, u *unstructured.Unstructured, change func([]any) []any,
	content map[string]any) error {
	m.t.Helper()

	entries, _, err := unstructured.NestedSlice(u.Object, "metadata", "managedFields")
	require.NoError(m.t, err)
	require.NoError(m.t, unstructured.SetNestedSlice(content, change(entries), "metadata", "managedFields"))

	return m.patch(c, u, content)
}

// entry is an entry of the managed fields that shows an apply of the handover annotation, and of more.
func (m *mutated) entry(manager string, more map[string]any) map[string]any {
	fields := map[string]any{"f:metadata": map[string]any{"f:annotations": map[string]any{"f:" +
		m.handover: map[string]any{}}}}
	maps.Copy(fields, more)

	return map[string]any{
		"manager": manager, "operation": "Apply", "apiVersion": "mutated.example.com/v1", "time": "2030-01-01T00:00:00Z",
		"fieldsType": "FieldsV1", "fieldsV1": fields,
	}
}

func TestRebalancerMovesWhatAdmissionChanges(t *testing.T) {
	m := newMutated(t)
	to := func(shard string) map[string]any { return map[string]any{m.shard: shard} }

	for name, prepare := range map[string]step{"managed": nil, "managed by nobody": reset} {
		t.Run(name, func(t *testing.T) {
			u := m.object()
			if prepare != nil {
				require.NoError(t, prepare(m, u))
			}

			err := m.patch(m.rebalancer, u, with(map[string]any{"labels": to("a")}, nil))
			require.ErrorContains(t, err, "annotation example.org/last-modified-by; a mutating webhook")
			require.True(t, apierrors.IsForbidden(err), err)

			require.NoError(t, m.apply(m.rebalancer, u, ours, with(m.metadata("{}", to("a")), nil)))
			require.Equal(t, "a", u.GetLabels()[m.shard])
			require.Equal(t, rebalancerName, u.GetAnnotations()["example.org/last-modified-by"])
			require.Equal(t, "made by version 2", u.Object["spec"].(map[string]any)["body"])

			require.NoError(t, m.apply(m.rebalancer, u, ours,
				with(m.metadata("{} ", map[string]any{m.shard: "a", m.drain: "true"}), nil)))
			require.NoError(t, m.apply(m.rebalancer, u, ours, with(m.metadata("{}", to("b")), nil)))
			require.Equal(t, map[string]string{"app": "a", m.shard: "b"}, u.GetLabels())
		})
	}
}

func TestRebalancerAppliesLabelsOfRings(t *testing.T) {
	m := newMutated(t)
	labelled := func(label string, more map[string]any) map[string]any {
		labels := map[string]any{label: "a", label + "-drain": "true"}
		maps.Copy(labels, more)

		return with(map[string]any{"labels": labels, "annotations": map[string]any{label + "-handover": "{}"}}, nil)
	}

	require.Eventually(t, func() bool { return m.apply(m.rebalancer, m.object(), ours, labelled(m.own, nil)) == nil },
		soon, tick)

	err := m.apply(m.rebalancer, m.object(), ours, labelled("other."+m.own, nil))
	require.ErrorContains(t, err, "grant the verb write on shardlabels.sharding.timebertt.dev with this name")

	err = m.apply(m.rebalancer, m.object(), ours, labelled(m.own, map[string]any{"example.com/other": "x"}))
	require.ErrorContains(t, err, "may not change label")
}

// step is a write to an object.
type step func(m *mutated, u *unstructured.Unstructured) error

// attack is an attempt to change more than labels and annotations of ours with the token of the rebalancer, where
// admission changes each object anyway. The other steps prepare the object.
type attack struct {
	prepare []step
	last    step
}

func applies(manager string, metadata, more map[string]any) step {
	return func(m *mutated, u *unstructured.Unstructured) error {
		return m.apply(m.rebalancer, u, manager, with(metadata, more))
	}
}

// patches sends a patch with the managed fields of the object and more entries.
func patches(metadata, more map[string]any, entries ...any) step {
	return func(m *mutated, u *unstructured.Unstructured) error {
		return m.crafts(m.rebalancer, u, func(all []any) []any { return append(all, entries...) }, with(metadata, more))
	}
}

// crafted replaces the managed fields, as an administrator.
func crafted(entries ...any) step {
	return func(m *mutated, u *unstructured.Unstructured) error {
		return m.crafts(m.Client, u, func([]any) []any { return entries }, map[string]any{})
	}
}

// reset removes the managed fields.
var reset = crafted(map[string]any{})

// disown lets nobody manage spec.map.
func disown(m *mutated, u *unstructured.Unstructured) error {
	return m.crafts(m.Client, u, func(entries []any) []any {
		for _, e := range entries {
			unstructured.RemoveNestedField(e.(map[string]any), "fieldsV1", "f:spec", "f:map")
		}

		return entries
	}, map[string]any{})
}

func spec(field string, value any) map[string]any {
	return map[string]any{"spec": map[string]any{field: value}}
}

// patchAttacks look like an apply, but are not.
func (m *mutated) patchAttacks() map[string]attack {
	meta, other, entry := m.metadata("{}", map[string]any{m.shard: "a"}), m.metadata("{} ",
		map[string]any{m.shard: "a"}), m.entry(ours, nil)
	gone, applied := spec("map", nil), applies(ours, meta, nil)

	return map[string]attack{
		"sets":                            {last: patches(meta, spec("theme", "dark"))},
		"removes":                         {last: patches(meta, gone)},
		"removes what nobody manages":     {[]step{disown}, patches(meta, gone)},
		"with an entry":                   {[]step{disown}, patches(meta, gone, entry)},
		"with an entry, nothing of ours":  {[]step{disown}, patches(nil, gone, entry)},
		"after an apply":                  {[]step{applied, disown}, patches(other, gone)},
		"after an apply, nothing of ours": {[]step{applied, disown}, patches(nil, gone)},
		"after an apply, with a new entry": {[]step{applied, disown}, func(m *mutated, u *unstructured.Unstructured) error {
			return m.crafts(m.rebalancer, u, func([]any) []any { return []any{m.entry(ours, nil)} }, with(nil, gone))
		}},
		"resets the managed fields": {last: func(m *mutated, u *unstructured.Unstructured) error {
			return m.crafts(m.rebalancer, u, func([]any) []any { return []any{map[string]any{}} }, with(meta, gone))
		}},
		"of an object without entries": {[]step{reset}, patches(meta, gone)},
		"only with an entry":           {[]step{reset}, patches(meta, gone, entry)},
		"that cannot be recorded": {[]step{applied},
			patches(other, map[string]any{"spec": map[string]any{"revision": "x", "theme": "dark"}})},
		"that cannot be recorded, entry": {[]step{applied},
			patches(other, map[string]any{"spec": map[string]any{"revision": "x", "theme": "dark"}},
				m.entry("rebalancer-x", nil))},
	}
}

// applyAttacks send more, or remove what an earlier apply has sent.
func (m *mutated) applyAttacks() map[string]attack {
	labels := map[string]any{m.shard: "a"}
	meta, other := m.metadata("{}", labels), m.metadata("{} ", labels)
	extended := func(key string, value any) map[string]any {
		all := maps.Clone(meta)
		all[key] = value

		return all
	}
	owned := func(fields map[string]any) []step { return []step{crafted(m.entry(ours, fields))} }

	all := map[string]attack{
		"the same":  {last: applies(ours, meta, spec("theme", "light"))},
		"null":      {last: applies(ours, meta, map[string]any{"spec": nil})},
		"finalizer": {last: applies(ours, extended("finalizers", []any{"example.com/x"}), nil)},
		"owner": {last: applies(ours, extended("ownerReferences",
			[]any{map[string]any{"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "y"}}), nil)},
		"label": {last: applies(ours, m.metadata("{}", map[string]any{"app": "b", m.shard: "a"}), nil)},
		"annotation": {last: applies(ours, extended("annotations", map[string]any{"note": "b", m.handover: "{}"}),
			nil)},
		"without annotation": {last: applies(ours, map[string]any{"labels": labels}, spec("theme", "dark"))},
		"by another manager": {last: applies("other", meta, nil)},
		"by kubectl": {[]step{func(m *mutated, u *unstructured.Unstructured) error {
			return m.patch(m.Client, u,
				with(map[string]any{"annotations": map[string]any{"kubectl.kubernetes.io/last-applied-configuration": "{}"}}, nil))
		}}, applies("kubectl", meta, nil)},
		"less": {[]step{func(m *mutated, u *unstructured.Unstructured) error {
			return m.apply(m.Client, u, ours, with(meta, spec("theme", "dark")))
		}}, applies(ours, other, nil)},
		"less, with an entry": {
			owned(map[string]any{"f:spec": map[string]any{"f:map": map[string]any{"f:k": map[string]any{}}}}),
			applies(ours, other, nil),
		},
		"less metadata": {
			owned(map[string]any{"f:metadata": map[string]any{"f:finalizers": map[string]any{".": map[string]any{}}}}),
			applies(ours, other, nil),
		},
		"less of what admission adds": {owned(map[string]any{"f:metadata": map[string]any{"f:annotations": map[string]any{
			"f:" + m.handover: map[string]any{}, "f:example.org/last-modified-by": map[string]any{},
		}}}), applies(ours, other, nil)},
		"no labels": {owned(map[string]any{"f:metadata": map[string]any{"f:labels": map[string]any{"f:" +
			m.shard: map[string]any{}}}}),
			applies(ours, map[string]any{"annotations": map[string]any{m.handover: "{}"}}, nil)},
	}

	for field, value := range map[string]any{
		"theme": "dark", "map": nil, "rules": []any{map[string]any{"name": "three"}}, "atomic": []any{}, "hosts": []any{},
		"nested": map[string]any{},
		"free":   map[string]any{"more": []any{}},
	} {
		all[field] = attack{last: applies(ours, meta, spec(field, value))}
	}

	all["nested list"] = attack{last: applies(ours, meta, spec("nested", map[string]any{"hosts": []any{}}))}
	all["null list"] = attack{last: applies(ours, meta, spec("rules", nil))}

	return all
}

// TestStolenTokenChangesNoMoreWhereAdmissionDoes: the policy about the rebalancer does not mistake for a change by
// admission what a request has sent.
func TestStolenTokenChangesNoMoreWhereAdmissionDoes(t *testing.T) {
	m := newMutated(t)

	for kind, all := range map[string]map[string]attack{"patch": m.patchAttacks(), "apply": m.applyAttacks()} {
		for name, a := range all {
			t.Run(kind+" "+name, func(t *testing.T) {
				u := m.object()
				for _, prepare := range a.prepare {
					require.NoError(t, prepare(m, u))
				}

				err := a.last(m, u)
				require.ErrorContains(t, err, "the rebalancer may not change")
				require.True(t, apierrors.IsForbidden(err), err)
			})
		}
	}
}

// TestRebalancerMovesLargeObjects: the cost of an expression is limited, but not the number of labels and annotations
// of an object.
func TestRebalancerMovesLargeObjects(t *testing.T) {
	const (
		labels      = 3_000
		annotations = 35_000
	)

	p := newPolicies(t)
	own := p.shards + ".example.com/shard"
	p.labelling(p.movable("", "configmaps"), own)

	numbered := func(count int) map[string]string {
		all := make(map[string]string, count)
		for i := range count {
			all[fmt.Sprintf("%05x", i)] = ""
		}

		return all
	}
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: p.tenant, Name: "large", Labels: numbered(labels), Annotations: numbered(annotations),
	}}
	p.create(object)

	rebalancer := p.service("rebalancer")
	shard, drain := contract.ShardLabel(p.ring.Name), contract.DrainLabel(p.ring.Name)

	require.Eventually(t, func() bool {
		return patching(t, rebalancer, object, `{"metadata":{"labels":{"`+drain+`":"true"}}}`)() == nil
	}, soon, tick, "the API server should know the permission")
	require.NoError(t, patching(t, rebalancer, object, `{"metadata":{"labels":{"`+shard+`":"a","`+drain+`":null}}}`)())
	require.NoError(t, patching(t, rebalancer, object, `{"metadata":{"labels":{"`+own+`":"a"}}}`)())
	p.refused(patching(t, rebalancer, object, `{"metadata":{"labels":{"`+shard+`":"a"}},"data":{"k":"v"}}`),
		"may not change data;")
	p.refused(patching(t, rebalancer, object, `{"metadata":{"labels":{"00000":"x"}}}`), "may not change label 00000;")
}
