package policies_test

import (
	"encoding/json"
	"maps"
	"testing"

	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

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
	p.create(&rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "move-" + p.ring.Name, Labels: map[string]string{contract.LabelAggregateToRebalancer: "true"}},
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{"mutated.example.com"}, Resources: []string{"gadgets"}, Verbs: []string{"patch"}},
			{APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{contract.ResourceShardLabels}, ResourceNames: []string{own}, Verbs: []string{"write"}},
		},
	})
	require.NoError(t, p.Aggregate(t.Context()))

	m := &mutated{
		policies: p, rebalancer: p.service("rebalancer"),
		shard: contract.ShardLabel(p.ring.Name), drain: contract.DrainLabel(p.ring.Name), handover: contract.HandoverAnnotation(p.ring.Name),
		own: own,
	}

	// The policy counts from some moment on.
	require.Eventually(t, func() bool { return m.object().GetAnnotations()["example.org/last-modified-by"] != "" }, soon, tick)

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
	require.Eventually(m.t, func() bool { return m.Client.Create(m.t.Context(), u, client.FieldOwner("kubectl-create")) == nil }, 2*soon, tick)

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
	metadata["name"], metadata["namespace"], metadata["resourceVersion"] = u.GetName(), u.GetNamespace(), u.GetResourceVersion()
	content["apiVersion"], content["kind"] = u.GetAPIVersion(), u.GetKind()

	return c.Patch(m.t.Context(), u, client.RawPatch(types.ApplyPatchType, encoded(m.t, content)), client.FieldOwner(manager), client.ForceOwnership)
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
func (m *mutated) crafts(c client.Client, u *unstructured.Unstructured, change func([]any) []any, content map[string]any) error {
	m.t.Helper()

	entries, _, err := unstructured.NestedSlice(u.Object, "metadata", "managedFields")
	require.NoError(m.t, err)
	require.NoError(m.t, unstructured.SetNestedSlice(content, change(entries), "metadata", "managedFields"))

	return m.patch(c, u, content)
}

// entry is an entry of the managed fields that shows an apply of the handover annotation, and of more.
func (m *mutated) entry(manager string, more map[string]any) map[string]any {
	fields := map[string]any{"f:metadata": map[string]any{"f:annotations": map[string]any{"f:" + m.handover: map[string]any{}}}}
	maps.Copy(fields, more)

	return map[string]any{
		"manager": manager, "operation": "Apply", "apiVersion": "mutated.example.com/v1", "time": "2030-01-01T00:00:00Z", "fieldsType": "FieldsV1", "fieldsV1": fields,
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

			require.NoError(t, m.apply(m.rebalancer, u, ours, with(m.metadata("{} ", map[string]any{m.shard: "a", m.drain: "true"}), nil)))
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

	require.Eventually(t, func() bool { return m.apply(m.rebalancer, m.object(), ours, labelled(m.own, nil)) == nil }, soon, tick)

	err := m.apply(m.rebalancer, m.object(), ours, labelled("other."+m.own, nil))
	require.ErrorContains(t, err, "grant the verb write on shardlabels.sharding.timebertt.dev with this name")

	err = m.apply(m.rebalancer, m.object(), ours, labelled(m.own, map[string]any{"example.com/other": "x"}))
	require.ErrorContains(t, err, "may not change label")
}

// step is a write to an object.
type step func(m *mutated, u *unstructured.Unstructured) error

// attack is an attempt to change more than labels and annotations of ours with the token of the rebalancer, where admission changes each object anyway.
// The other steps prepare the object.
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
	meta, other, entry := m.metadata("{}", map[string]any{m.shard: "a"}), m.metadata("{} ", map[string]any{m.shard: "a"}), m.entry(ours, nil)
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
		"of an object without entries":   {[]step{reset}, patches(meta, gone)},
		"only with an entry":             {[]step{reset}, patches(meta, gone, entry)},
		"that cannot be recorded":        {[]step{applied}, patches(other, map[string]any{"spec": map[string]any{"revision": "x", "theme": "dark"}})},
		"that cannot be recorded, entry": {[]step{applied}, patches(other, map[string]any{"spec": map[string]any{"revision": "x", "theme": "dark"}}, m.entry("rebalancer-x", nil))},
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
		"the same":           {last: applies(ours, meta, spec("theme", "light"))},
		"null":               {last: applies(ours, meta, map[string]any{"spec": nil})},
		"finalizer":          {last: applies(ours, extended("finalizers", []any{"example.com/x"}), nil)},
		"owner":              {last: applies(ours, extended("ownerReferences", []any{map[string]any{"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "y"}}), nil)},
		"label":              {last: applies(ours, m.metadata("{}", map[string]any{"app": "b", m.shard: "a"}), nil)},
		"annotation":         {last: applies(ours, extended("annotations", map[string]any{"note": "b", m.handover: "{}"}), nil)},
		"without annotation": {last: applies(ours, map[string]any{"labels": labels}, spec("theme", "dark"))},
		"by another manager": {last: applies("other", meta, nil)},
		"by kubectl": {[]step{func(m *mutated, u *unstructured.Unstructured) error {
			return m.patch(m.Client, u, with(map[string]any{"annotations": map[string]any{"kubectl.kubernetes.io/last-applied-configuration": "{}"}}, nil))
		}}, applies("kubectl", meta, nil)},
		"less": {[]step{func(m *mutated, u *unstructured.Unstructured) error {
			return m.apply(m.Client, u, ours, with(meta, spec("theme", "dark")))
		}}, applies(ours, other, nil)},
		"less, with an entry": {owned(map[string]any{"f:spec": map[string]any{"f:map": map[string]any{"f:k": map[string]any{}}}}), applies(ours, other, nil)},
		"less metadata":       {owned(map[string]any{"f:metadata": map[string]any{"f:finalizers": map[string]any{".": map[string]any{}}}}), applies(ours, other, nil)},
		"less of what admission adds": {owned(map[string]any{"f:metadata": map[string]any{"f:annotations": map[string]any{
			"f:" + m.handover: map[string]any{}, "f:example.org/last-modified-by": map[string]any{},
		}}}), applies(ours, other, nil)},
		"no labels": {owned(map[string]any{"f:metadata": map[string]any{"f:labels": map[string]any{"f:" + m.shard: map[string]any{}}}}),
			applies(ours, map[string]any{"annotations": map[string]any{m.handover: "{}"}}, nil)},
	}

	for field, value := range map[string]any{
		"theme": "dark", "map": nil, "rules": []any{map[string]any{"name": "three"}}, "atomic": []any{}, "hosts": []any{}, "nested": map[string]any{},
		"free": map[string]any{"more": []any{}},
	} {
		all[field] = attack{last: applies(ours, meta, spec(field, value))}
	}

	all["nested list"] = attack{last: applies(ours, meta, spec("nested", map[string]any{"hosts": []any{}}))}
	all["null list"] = attack{last: applies(ours, meta, spec("rules", nil))}

	return all
}

// TestStolenTokenChangesNoMoreWhereAdmissionDoes: the policy about the rebalancer does not mistake for a change by admission what a request has sent.
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
