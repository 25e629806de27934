package policies_test

import (
	"context"
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

func ringOf(name string, selector *metav1.LabelSelector, resources ...v1alpha1.RingResource) *v1alpha1.ClusterRing {
	return &v1alpha1.ClusterRing{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.ClusterRingSpec{Resources: resources, NamespaceSelector: selector},
	}
}

func controls(resources ...string) []v1alpha1.ControlledResource {
	list := make([]v1alpha1.ControlledResource, 0, len(resources))
	for _, r := range resources {
		list = append(list, v1alpha1.ControlledResource{Resource: r})
	}

	return list
}

func expression(operator metav1.LabelSelectorOperator, values ...string) *metav1.LabelSelector {
	return &metav1.LabelSelector{
		MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "k", Operator: operator, Values: values}},
	}
}

// The API server refuses by itself what no service could work with.
func TestInvalidRings(t *testing.T) {
	p := localplane.Shared(t)
	pods := v1alpha1.RingResource{Resource: "pods"}
	both := v1alpha1.RingResource{Group: "apps", Resource: "replicasets", ControlledResources: controls("pods")}

	for name, tc := range map[string]struct {
		ring *v1alpha1.ClusterRing
		want string
	}{
		"no resource":          {ringOf("r", nil, []v1alpha1.RingResource{}...), "should have at least 1 items"},
		"no list of resources": {ringOf("r", nil), "spec.resources: Required value"},
		"main twice":           {ringOf("r", nil, pods, pods), "Duplicate value"},
		"controlled twice": {ringOf("r", nil, v1alpha1.RingResource{Resource: "a",
			ControlledResources: controls("b", "b")}), "Duplicate value"},
		"main and controlled": {ringOf("r", nil, pods, both),
			"must not be listed both as a main and as a controlled resource"},
		"its own controlled": {ringOf("r", nil, v1alpha1.RingResource{Resource: "a", ControlledResources: controls("a")}),
			"must not be listed both"},
		"name too long":      {ringOf(strings.Repeat("a", 64), nil, pods), "at most 63 characters"},
		"name with capitals": {ringOf("Ring", nil, pods), "metadata.name"},
		"group with a slash": {ringOf("r", nil, v1alpha1.RingResource{Group: "a/v1", Resource: "b"}),
			"spec.resources[0].group"},
		"resource with a dot": {ringOf("r", nil, v1alpha1.RingResource{Resource: "deployments.apps"}),
			"spec.resources[0].resource"},
		"kind as resource": {ringOf("r", nil, v1alpha1.RingResource{Resource: "Pod"}), "spec.resources[0].resource"},
		"subresource": {ringOf("r", nil, v1alpha1.RingResource{Resource: "pods/status"}),
			"spec.resources[0].resource"},
		"empty resource": {ringOf("r", nil, v1alpha1.RingResource{}), "spec.resources[0].resource"},
		"invalid controlled": {ringOf("r", nil, v1alpha1.RingResource{Resource: "a", ControlledResources: controls("B")}),
			"controlledResources[0].resource"},
		"unknown operator": {ringOf("r", expression("Near", "v"), pods), "needs the operator In or NotIn with values"},
		"operator but no value": {ringOf("r", expression(metav1.LabelSelectorOpIn), pods),
			"needs the operator In or NotIn with values"},
		"selector value": {ringOf("r", &metav1.LabelSelector{MatchLabels: map[string]string{"team": "a b"}}, pods),
			"namespaceSelector.matchLabels.team"},
		"long selector value": {ringOf("r",
			&metav1.LabelSelector{MatchLabels: map[string]string{"k": strings.Repeat("a", 64)}}, pods), "Too long"},
		"expression value": {ringOf("r", expression(metav1.LabelSelectorOpIn, "a", "b/c"), pods),
			"namespaceSelector.matchExpressions[0].values[1]"},
		"expression key": {ringOf("r",
			&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a b",
				Operator: "Exists"}}}, pods), "namespaceSelector.matchExpressions[0].key"},
		"Leases": {ringOf("r", nil, v1alpha1.RingResource{Group: "coordination.k8s.io", Resource: "leases"}),
			"cannot shard Leases"},
		"Nodes": {ringOf("r", nil, v1alpha1.RingResource{Resource: "nodes"}), "cannot shard Leases"},
		"Events": {ringOf("r", nil, v1alpha1.RingResource{Group: "events.k8s.io", Resource: "events"}),
			"cannot shard Leases"},
		"rights": {ringOf("r", nil, v1alpha1.RingResource{Group: "rbac.authorization.k8s.io",
			Resource: "roles"}), "cannot shard Leases"},
		"webhooks": {ringOf("r", nil, v1alpha1.RingResource{Group: "admissionregistration.k8s.io",
			Resource: "mutatingwebhookconfigurations"}), "cannot shard Leases"},
		"rings": {ringOf("r", nil, v1alpha1.RingResource{Group: "sharding.timebertt.dev",
			Resource: "clusterrings"}), "cannot shard Leases"},
		"controlled Events": {ringOf("r", nil, v1alpha1.RingResource{Resource: "a",
			ControlledResources: controls("events")}), "cannot shard Leases"},
		"shards twice":        {shardsIn("a", "a"), "Duplicate value"},
		"no namespace's name": {shardsIn("a b"), "spec.shardNamespaces[0]"},
		"value but no operator": {ringOf("r", expression(metav1.LabelSelectorOpExists, "v"), pods),
			"needs the operator In or NotIn with values"},
	} {
		t.Run(name, func(t *testing.T) {
			require.ErrorContains(t, p.Client.Create(t.Context(), tc.ring, client.DryRunAll), tc.want)
		})
	}
}

// shardsIn returns a ring whose shards are in these namespaces.
func shardsIn(namespaces ...string) *v1alpha1.ClusterRing {
	ring := ringOf("r", nil, v1alpha1.RingResource{Resource: "pods"})
	ring.Spec.ShardNamespaces = namespaces

	return ring
}

func TestValidRings(t *testing.T) {
	p := localplane.Shared(t)
	pods := v1alpha1.RingResource{Resource: "pods"}

	for name, ring := range map[string]*v1alpha1.ClusterRing{
		"longest name":   ringOf(strings.Repeat("a", 63), nil, pods),
		"name with dots": ringOf("a.b-c", nil, pods),
		"same resource of another group": ringOf("r", nil,
			v1alpha1.RingResource{Group: "apps", Resource: "deployments", ControlledResources: controls("pods", "secrets")},
			v1alpha1.RingResource{Group: "batch", Resource: "jobs", ControlledResources: controls("configmaps")},
			v1alpha1.RingResource{Group: "example.com", Resource: "pods"}),
		"in": ringOf("r", expression(metav1.LabelSelectorOpNotIn, "a", "b"), pods),
		"labels": ringOf("r", &metav1.LabelSelector{MatchLabels: map[string]string{"a": "", "example.com/Team_1": "x.Y-z_9"}},
			pods),
		"keys": ringOf("r", &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: strings.Repeat("a.", 126) + "a/" + strings.Repeat("K", 63), Operator: "Exists"}, {Key: "K_1.x", Operator: "In",
				Values: []string{"", "V"}},
		}}, pods),
		"does not exist": ringOf("r", expression(metav1.LabelSelectorOpDoesNotExist), pods),
		"no selector":    ringOf("r", &metav1.LabelSelector{}, pods),
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, p.Client.Create(t.Context(), ring, client.DryRunAll))
		})
	}
}

// The parts of a ring's status by their writers: fields, and types of conditions.
var (
	ofMonitor = []string{
		"observedGeneration", "shards", "availableShards", "holders", v1alpha1.ConditionReady,
		v1alpha1.ConditionShardsAvailable,
	}
	ofAssigner   = []string{"shardLabel", v1alpha1.ConditionWebhookRegistered, v1alpha1.ConditionFenced}
	ofRebalancer = []string{"assignment", v1alpha1.ConditionAssigned, v1alpha1.ConditionKeysFound,
		v1alpha1.ConditionPaused}
)

// TestServicesWriteOnlyTheirPartOfTheStatus tries each part of the status with the rights of each writer.
func TestServicesWriteOnlyTheirPartOfTheStatus(t *testing.T) {
	p := newPolicies(t)
	p.grantStatus(t)

	before := reported(t, p)

	for writer, parts := range map[client.Client][]string{
		p.service("leasemonitor"):      ofMonitor,
		p.service("assigner"):          ofAssigner,
		p.service("rebalancer"):        ofRebalancer,
		p.service("sharder"):           ofRebalancer,
		p.as(p.shards, "default", "a"): slices.Concat(ofMonitor, ofRebalancer),
		p.Client:                       slices.Concat(ofMonitor, ofAssigner, ofRebalancer, []string{"Other"}),
	} {
		for part, patches := range changes(t, before) {
			for _, patch := range patches {
				write := func() error {
					return writer.Status().Patch(t.Context(), p.ring.DeepCopy(), client.RawPatch(types.MergePatchType, patch),
						client.DryRunAll)
				}
				if slices.Contains(parts, part) {
					require.NoError(t, write(), "%s by its writer", part)
					continue
				}

				p.refused(write, "may not change "+named(part)+" of ring "+p.ring.Name)
			}
		}
	}
}

// TestSharderOfARingDoesNotChangeIt: who shards a ring writes that into its metadata, and nothing else.
func TestSharderOfARingDoesNotChangeIt(t *testing.T) {
	p := newPolicies(t)
	p.grantStatus(t)

	base := client.RawPatch(types.MergePatchType, []byte(
		`{"metadata":{"labels":{"team":"a"},"annotations":{"note":"b"},"finalizers":["example.com/keep"]}}`))
	require.NoError(t, p.Client.Patch(t.Context(), p.ring, base))
	t.Cleanup(func() {
		none := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
		require.NoError(t, p.Client.Patch(context.WithoutCancel(t.Context()), p.ring, none))
	})

	for _, c := range []client.Client{p.service("rebalancer"), p.service("sharder"), p.as(p.shards, "default", "a")} {
		for _, patch := range []string{
			`{"spec":{"paused":true}}`, `{"spec":{"shardNamespaces":["` + p.tenant + `"]}}`,
			`{"spec":{"resources":[{"resource":"secrets"}]}}`,
			`{"metadata":{"labels":{"team":null}}}`, `{"metadata":{"labels":{"x":"y"}}}`,
			`{"metadata":{"annotations":{"note":"c"}}}`, `{"metadata":{"annotations":{"note":null}}}`,
			`{"metadata":{"annotations":{"` + contract.AnnotationUnboundShards + `":"true"}}}`,
			`{"metadata":{"finalizers":null}}`, `{"metadata":{"finalizers":["example.com/keep","example.com/more"]}}`,
			`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Namespace","name":"x","uid":"u"}]}}`,
		} {
			p.refused(patching(t, c, p.ring, patch), "may not change ")
		}

		require.NoError(t, patching(t, c, p.ring,
			`{"metadata":{"annotations":{"`+contract.AnnotationSharder+`":"nobody"},"finalizers":["example.com/keep","`+
				contract.FinalizerRebalancer+`"]}}`)())
	}

	require.NoError(t, patching(t, p.Client, p.ring, `{"spec":{"paused":true}}`)(), "an administrator may")
}

// grantStatus grants the Pods in the namespace of the shards what deploy/example-embedded grants, and the account of
// the prior art what the component sharder does.
func (p *policies) grantStatus(t *testing.T) {
	t.Helper()

	name := "sharder-" + p.ring.Name
	group := v1alpha1.GroupVersion.Group
	p.create(&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{group}, Resources: []string{"clusterrings"}, ResourceNames: []string{p.ring.Name},
			Verbs: []string{"get", "list", "watch", "patch"}},
		{APIGroups: []string{group}, Resources: []string{"clusterrings/status"}, ResourceNames: []string{p.ring.Name},
			Verbs: []string{"patch"}},
	}})

	for role, subject := range map[string]rbacv1.Subject{
		name:                     {Kind: rbacv1.ServiceAccountKind, Namespace: p.shards, Name: "default"},
		"clusterring:rebalancer": {Kind: rbacv1.ServiceAccountKind, Namespace: contract.SystemNamespace, Name: "sharder"},
	} {
		p.create(&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{GenerateName: name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   []rbacv1.Subject{subject},
		})
	}
}

// reported gives the ring a status to which every service has contributed, and one more.
func reported(t *testing.T, p *policies) map[string]any {
	t.Helper()

	p.ring.Status = v1alpha1.ClusterRingStatus{
		ObservedGeneration: 1, Shards: 2, AvailableShards: 2, Holders: []v1alpha1.ShardHolder{{Shard: "a", Pod: "x"}},
		ShardLabel: "example.com/shard", Assignment: &v1alpha1.AssignmentStatus{Fingerprint: "f"},
	}

	for _, part := range slices.Concat(ofMonitor, ofAssigner, ofRebalancer, []string{"Other"}) {
		if isCondition(part) {
			p.ring.Status.Conditions = append(p.ring.Status.Conditions, metav1.Condition{
				Type: part, Status: metav1.ConditionTrue, Reason: "Before", LastTransitionTime: metav1.Unix(1_800_000_000, 0),
			})
		}
	}

	require.NoError(t, p.Client.Status().Update(t.Context(), p.ring))

	content, err := json.Marshal(p.ring.Status)
	require.NoError(t, err)

	var status map[string]any
	require.NoError(t, json.Unmarshal(content, &status))

	return status
}

// changes returns patches of each part of the status: of every field that there is, and of every condition of the given
// status.
func changes(t *testing.T, status map[string]any) map[string][][]byte {
	t.Helper()

	out := map[string][][]byte{}
	add := func(part, field string, value any) {
		patch, err := json.Marshal(map[string]any{"status": map[string]any{field: value}})
		require.NoError(t, err)

		out[part] = append(out[part], patch)
	}

	other := map[string]any{
		"observedGeneration": 7, "shards": 7, "availableShards": 7, "holders": []any{map[string]any{"shard": "a",
			"pod": "thief"}},
		"shardLabel": "example.com/other", "assignment": map[string]any{"fingerprint": "other"},
	}

	for f := range reflect.TypeFor[v1alpha1.ClusterRingStatus]().Fields() {
		field, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if field == "conditions" {
			continue
		}

		require.Contains(t, other, field, "a new field needs a writer, in the policy rings, too")
		add(field, field, other[field])
		add(field, field, nil)
	}

	conditions, _ := status["conditions"].([]any)
	for i, c := range conditions {
		before, _ := c.(map[string]any)
		part, _ := before["type"].(string)

		for key, value := range map[string]any{"status": "False", "reason": "After", "message": "after",
			"lastTransitionTime": "2031-01-01T00:00:00Z"} {
			after := maps.Clone(before)
			after[key] = value
			add(part, "conditions", slices.Concat(conditions[:i], []any{after}, conditions[i+1:]))
		}

		add(part, "conditions", slices.Concat(conditions[:i], conditions[i+1:]))
	}

	return out
}

func isCondition(part string) bool { return strings.ToUpper(part[:1]) == part[:1] }

func named(part string) string {
	if isCondition(part) {
		return "condition " + part
	}

	return "status." + part
}

// registrable waits until the policies know the ring.
func (p *policies) registrable(assigner client.Client) {
	p.t.Helper()
	require.Eventually(p.t, func() bool { return creating(p.t, assigner, p.configuration())() == nil }, time.Minute,
		50*time.Millisecond,
		"the policies should know the ring")
}

func TestWebhooksGoWithTheirRings(t *testing.T) {
	p := newPolicies(t)
	assigner := p.service("assigner")
	p.describe(map[string]string{"namespaces." + p.ring.Name: p.shards, "namespaces.untold": ""})
	p.registrable(assigner)

	// A second owner would keep a configuration whose ring is gone, and so would a version that no API server serves.
	namespace := metav1.OwnerReference{APIVersion: "v1", Kind: "Namespace", Name: p.shards, UID: "1"}
	p.refused(creating(t, assigner, p.configuration(func(c configuration) {
		// so that only one of the policies refuses it
		c.Labels[contract.LabelClusterRing], c.OwnerReferences[0].Name = "untold", "untold"
		c.OwnerReferences = append(c.OwnerReferences, namespace)
	})), "the only owner")
	p.refused(creating(t, assigner,
		p.configuration(func(c configuration) { c.OwnerReferences[0].APIVersion = "sharding.timebertt.dev/v9" })),
		"the only owner")
	p.refused(creating(t, assigner, p.configuration(func(c configuration) { c.OwnerReferences[0].UID = "other" })),
		"must have the uid of that ring")
	p.refused(creating(t, assigner, p.configuration(func(c configuration) {
		c.Labels[contract.LabelClusterRing], c.OwnerReferences[0].Name = "none", "none"
		c.Webhooks[0].Rules[0].Resources = []string{"pods", "secrets"}
	})), "contains the ring of this webhook configuration")
}

func TestWebhooksAreCalledInNamespacesOfTheirRings(t *testing.T) {
	p := newPolicies(t)
	assigner := p.service("assigner")
	p.registrable(assigner)

	selector := func(s *metav1.LabelSelector) func() error {
		return creating(t, assigner, p.configuration(func(c configuration) { c.Webhooks[0].NamespaceSelector = s }))
	}
	p.ring.Spec.NamespaceSelector = &metav1.LabelSelector{
		MatchLabels: map[string]string{"tenant": "a"},
		MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: "stage", Operator: metav1.LabelSelectorOpIn, Values: []string{"dev", "test"}}, {Key: "old",
				Operator: metav1.LabelSelectorOpDoesNotExist},
		},
	}
	require.NoError(t, p.Client.Update(t.Context(), p.ring))
	p.refused(selector(nil), "must only be called in namespaces that spec.namespaceSelector of the ring selects")

	narrower := p.ring.Spec.NamespaceSelector.DeepCopy()
	narrower.MatchLabels["more"] = "x"
	narrower.MatchExpressions = append(narrower.MatchExpressions,
		metav1.LabelSelectorRequirement{Key: "control-plane", Operator: metav1.LabelSelectorOpDoesNotExist})
	require.NoError(t, selector(narrower)())
	require.NoError(t, selector(p.ring.Spec.NamespaceSelector)())

	for _, change := range []func(*metav1.LabelSelector){
		func(s *metav1.LabelSelector) { s.MatchLabels = nil },
		func(s *metav1.LabelSelector) { s.MatchLabels["tenant"] = "b" },
		func(s *metav1.LabelSelector) { s.MatchExpressions = s.MatchExpressions[:1] },
		func(s *metav1.LabelSelector) { s.MatchExpressions[0].Values = []string{"dev", "test", "prod"} },
	} {
		wider := p.ring.Spec.NamespaceSelector.DeepCopy()
		change(wider)
		p.refused(selector(wider), "must only be called in namespaces that spec.namespaceSelector of the ring selects")
	}

	p.ring.Spec.NamespaceSelector = nil
	require.NoError(t, p.Client.Update(t.Context(), p.ring))
	require.Eventually(t, func() bool { return selector(nil)() == nil }, time.Minute, 50*time.Millisecond,
		"the policies should know the new selector")
}

func TestWebhooksAreCalledForObjectsThatTheirRingsSelect(t *testing.T) {
	p := newPolicies(t)
	assigner := p.service("assigner")
	p.registrable(assigner)

	p.ring.Spec.ObjectSelector = &metav1.LabelSelector{
		MatchLabels: map[string]string{"operator": "a"},
		MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "example.org/stage", Operator: metav1.LabelSelectorOpNotIn,
			Values: []string{"dev", "test"}}},
	}
	require.NoError(t, p.Client.Update(t.Context(), p.ring))

	var mains []string
	for _, r := range p.ring.Spec.Resources {
		mains = append(mains, strconv.Quote(r.Group+"/"+r.Resource))
	}

	others := " || !(request.resource.group + '/' + request.resource.resource in [" + strings.Join(mains, ", ") +
		"]) || request.operation == 'UPDATE' && \"" +
		contract.ShardLabel(p.ring.Name) + "\" in oldObject.metadata.?labels.orValue({})"
	operator := `("operator" in object.metadata.?labels.orValue({}) && object.metadata.labels["operator"] in ["a"])`
	stage := `!("example.org/stage" in object.metadata.?labels.orValue({}) && object.metadata.labels["example.org/stage"] in ["dev", "test"])`

	called := func(expressions ...string) func() error {
		return creating(t, assigner, p.configuration(func(c configuration) {
			for i, e := range expressions {
				c.Webhooks[0].MatchConditions = append(c.Webhooks[0].MatchConditions,
					admissionregistrationv1.MatchCondition{Name: "selected-" + strconv.Itoa(i), Expression: e})
			}
		}))
	}

	const refusal = "must only be called for objects that spec.objectSelector of the ring selects"

	p.refused(called(), refusal)
	require.NoError(t, called(operator+others, stage+others)())
	require.NoError(t, called(stage+others, "request.userInfo.username != 'x'", operator+others)(),
		"what narrows it more stays")

	for _, wider := range [][]string{
		{operator + others},
		{operator + others + " || true", stage + others},
		{"true || " + operator + others, stage + others},
		{`("operator" in object.metadata.?labels.orValue({}) && object.metadata.labels["operator"] in ["a", "b"])` + others,
			stage + others},
		{operator + strings.ReplaceAll(others, contract.ShardLabel(p.ring.Name), "name"), stage + others},
	} {
		p.refused(called(wider...), refusal)
	}
}

type configuration = *admissionregistrationv1.MutatingWebhookConfiguration

// configuration is a webhook configuration as the assigner writes it.
func (p *policies) configuration(change ...func(configuration)) configuration {
	c := &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{
			Name:   contract.WebhookConfigurationName(p.ring.Name),
			Labels: map[string]string{contract.LabelClusterRing: p.ring.Name},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: v1alpha1.GroupVersion.String(), Kind: "ClusterRing", Name: p.ring.Name, UID: p.ring.UID,
			}},
		},
		Webhooks: []admissionregistrationv1.MutatingWebhook{{
			Name: contract.WebhookName, FailurePolicy: ptr.To(admissionregistrationv1.Ignore), TimeoutSeconds: ptr.To[int32](5),
			SideEffects: ptr.To(admissionregistrationv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"},
			ClientConfig: admissionregistrationv1.WebhookClientConfig{
				Service: &admissionregistrationv1.ServiceReference{Namespace: contract.SystemNamespace, Name: "assigner"},
			},
			ObjectSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
				Key: contract.ShardLabel(p.ring.Name), Operator: metav1.LabelSelectorOpDoesNotExist,
			}}},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create, admissionregistrationv1.Update},
				Rule: admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"*"},
					Resources: []string{"configmaps"}},
			}},
		}},
	}

	for _, f := range change {
		f(c)
	}

	return c
}
