package policies_test

import (
	"context"
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

// The parts of a ring's status by their writers: fields, and types of conditions.
var (
	ofMonitor = []string{
		"observedGeneration", "shards", "availableShards", "holders", v1alpha1.ConditionReady, v1alpha1.ConditionShardsAvailable,
	}
	ofAssigner   = []string{"shardLabel", v1alpha1.ConditionWebhookRegistered, v1alpha1.ConditionFenced}
	ofRebalancer = []string{"assignment", v1alpha1.ConditionAssigned, v1alpha1.ConditionKeysFound, v1alpha1.ConditionPaused}
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
					return writer.Status().Patch(t.Context(), p.ring.DeepCopy(), client.RawPatch(types.MergePatchType, patch), client.DryRunAll)
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

// TestStatusOfARingChangesNothingElse: what a service may write is a subresource. The API server ignores all else in it.
func TestStatusOfARingChangesNothingElse(t *testing.T) {
	p := newPolicies(t)
	patch := `{"metadata":{"labels":{"x":"y"},"annotations":{"x":"y"},"finalizers":["example.com/keep"]},"spec":{"paused":true}}`

	for _, service := range []string{"leasemonitor", "assigner", "rebalancer"} {
		ring := p.ring.DeepCopy()
		require.NoError(t, p.service(service).Status().Patch(t.Context(), ring, client.RawPatch(types.MergePatchType, []byte(patch))))
		require.Equal(t, p.ring.Spec, ring.Spec)
		require.Equal(t, []any{p.ring.Labels, p.ring.Annotations, p.ring.Finalizers}, []any{ring.Labels, ring.Annotations, ring.Finalizers})
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
			`{"spec":{"paused":true}}`, `{"spec":{"shardNamespaces":["` + p.tenant + `"]}}`, `{"spec":{"resources":[{"resource":"secrets"}]}}`,
			`{"metadata":{"labels":{"team":null}}}`, `{"metadata":{"labels":{"x":"y"}}}`,
			`{"metadata":{"annotations":{"note":"c"}}}`, `{"metadata":{"annotations":{"note":null}}}`,
			`{"metadata":{"annotations":{"` + contract.AnnotationUnboundShards + `":"true"}}}`,
			`{"metadata":{"finalizers":null}}`, `{"metadata":{"finalizers":["example.com/keep","example.com/more"]}}`,
			`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Namespace","name":"x","uid":"u"}]}}`,
		} {
			p.refused(patching(t, c, p.ring, patch), "may not change ")
		}

		require.NoError(t, patching(t, c, p.ring, `{"metadata":{"annotations":{"`+contract.AnnotationSharder+`":"nobody"},"finalizers":["example.com/keep","`+
			contract.FinalizerRebalancer+`"]}}`)())
	}

	require.NoError(t, patching(t, p.Client, p.ring, `{"spec":{"paused":true}}`)(), "an administrator may")
}

// grantStatus grants the Pods in the namespace of the shards what deploy/example-embedded grants, and the account of the prior art what the
// component sharder does.
func (p *policies) grantStatus(t *testing.T) {
	t.Helper()

	name := "sharder-" + p.ring.Name
	group := v1alpha1.GroupVersion.Group
	p.create(&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{group}, Resources: []string{"clusterrings"}, ResourceNames: []string{p.ring.Name}, Verbs: []string{"get", "list", "watch", "patch"}},
		{APIGroups: []string{group}, Resources: []string{"clusterrings/status"}, ResourceNames: []string{p.ring.Name}, Verbs: []string{"patch"}},
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

// changes returns patches of each part of the status: of every field that there is, and of every condition of the given status.
func changes(t *testing.T, status map[string]any) map[string][][]byte {
	t.Helper()

	out := map[string][][]byte{}
	add := func(part, field string, value any) {
		patch, err := json.Marshal(map[string]any{"status": map[string]any{field: value}})
		require.NoError(t, err)

		out[part] = append(out[part], patch)
	}

	other := map[string]any{
		"observedGeneration": 7, "shards": 7, "availableShards": 7, "holders": []any{map[string]any{"shard": "a", "pod": "thief"}},
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

		for key, value := range map[string]any{"status": "False", "reason": "After", "message": "after", "lastTransitionTime": "2031-01-01T00:00:00Z"} {
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
