package assigner_test

import (
	"context"
	"encoding/json"
	"maps"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

// stored returns the labels of an object.
func (f *fixture) stored(obj *unstructured.Unstructured) map[string]string {
	f.t.Helper()
	require.NoError(f.t, f.Client.Get(f.t.Context(), client.ObjectKeyFromObject(obj), obj))

	return obj.GetLabels()
}

// grant gives a user permissions in the whole cluster.
func (f *fixture) grant(user string, rules ...rbacv1.PolicyRule) {
	f.t.Helper()

	role := f.allow(user, nil, rules...)
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role.Name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	}
	require.NoError(f.t, f.Client.Create(f.t.Context(), binding))
	f.t.Cleanup(func() { require.NoError(f.t, f.Client.Delete(context.Background(), binding)) })
}

// TestRelabeledObjects: nobody but the ring gives an object of one shard to another, and what else the write contains
// is stored.
func TestRelabeledObjects(t *testing.T) {
	f := newFixture(t, "relabeled", "a", "b", "c")
	all := rbacv1.PolicyRule{APIGroups: []string{f.kind.Group}, Resources: []string{"*"}, Verbs: []string{"*"}}
	f.grant("tool", rbacv1.PolicyRule{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"*"}})
	f.grant("expert", all, rbacv1.PolicyRule{
		APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{"clusterrings"},
		ResourceNames: []string{f.name}, Verbs: []string{"relabel"},
	})
	start(t, f.Plane)
	f.registered()

	c, warned := f.warned()
	shard, drain := f.shardLabel(), contract.DrainLabel(f.name)

	type labels = map[string]any // nil removes one

	atA := labels{shard: "a"}

	for what, tc := range map[string]struct {
		by                   client.Client
		before, write, after labels
		calls                int
	}{
		"dropped":              {c, atA, labels{shard: nil, "app": "x"}, labels{shard: "a", "app": "x"}, 1},
		"an edit":              {c, atA, labels{shard: "b", "app": "x"}, labels{shard: "a", "app": "x"}, 1},
		"to nothing":           {c, atA, labels{shard: ""}, atA, 1},
		"to no shard":          {c, atA, labels{shard: "of-nobody"}, atA, 1},
		"by one who may do it": {f.as("expert"), atA, labels{shard: "b"}, labels{shard: "b"}, 0},
		"by one who may do everything, and does not know of this": {f.as("tool"), atA, labels{shard: "b"}, atA, 1},
		"the label stays":         {c, atA, labels{"app": "x", drain: "b"}, labels{shard: "a", "app": "x", drain: "b"}, 0},
		"the drain is withdrawn":  {c, labels{shard: "a", drain: "b"}, labels{drain: nil}, atA, 0},
		"released to the next":    {c, labels{shard: "a", drain: "b"}, labels{shard: "b", drain: nil}, labels{shard: "b"}, 0},
		"released to another one": {c, labels{shard: "a", drain: "b"}, labels{shard: "c", drain: nil}, atA, 1},
		"released":                {c, labels{shard: "a", drain: "true"}, labels{shard: nil, drain: nil}, nil, 0},
	} {
		t.Run(what, func(t *testing.T) {
			w := f.website(unique("site"))
			w.Object["metadata"].(map[string]any)["labels"] = maps.Clone(tc.before)
			f.create(w)

			body, err := json.Marshal(labels{"metadata": labels{"labels": tc.write}, "spec": labels{"x": "y"}})
			require.NoError(t, err)

			calls := count(t, f.name, "")
			require.NoError(t, f.patch(tc.by, w, string(body)))
			require.Equal(t, calls+tc.calls, count(t, f.name, ""))
			require.Equal(t, tc.by == c && tc.calls > 0, strings.Contains(warned.take(), "was restored"))

			f.stored(w)
			require.Equal(t, "y", w.Object["spec"].(map[string]any)["x"])

			after, _ := w.Object["metadata"].(map[string]any)["labels"].(labels)
			require.Equal(t, tc.after, after)
		})
	}

	w := f.website("moved")
	w.SetLabels(map[string]string{shard: "a"})
	f.create(w)
	require.NoError(t, f.patch(f.rebalancer(), w, `{"metadata":{"labels":{"`+shard+`":"c"}}}`))
	require.Equal(t, "c", f.stored(w)[shard])

	waits := f.create(f.website("waits"))
	require.NoError(t, f.patch(f.rebalancer(), waits, `{"metadata":{"labels":{"`+shard+`":null}}}`))
	require.NoError(t, f.patch(c, waits, `{"spec":{"x":"y"}}`))
	require.Empty(t, f.stored(waits)[shard], "what it controls goes first")
	require.Positive(t, count(t, f.name, "handover"))

	child := f.child(unique("child"), f.create(f.website("owner")))
	child.SetLabels(map[string]string{shard: "a"})
	f.create(child)
	require.NoError(t, f.patch(c, child, `{"metadata":{"labels":{"`+shard+`":"b"}}}`))
	require.Equal(t, "a", f.stored(child)[shard])
}

// TestLabelsInSubresources: the API server lets writes of some subresources change labels.
func TestLabelsInSubresources(t *testing.T) {
	f := newFixture(t, "subresources", "a", "b")
	f.changeRing(func(r *v1alpha1.ClusterRing) {
		r.Spec.Resources = append(r.Spec.Resources, v1alpha1.RingResource{Resource: "pods"})
	})
	f.record(f.ring().Spec.Resources...)
	(&fenced{f}).subresources()
	start(t, f.Plane)
	f.registered()

	shard := f.shardLabel()

	pod := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"containers": []any{map[string]any{"name": "c", "image": "i"}},
	}}}
	pod.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
	pod.SetNamespace(f.namespace)
	pod.SetName("pod")
	pod.SetLabels(map[string]string{shard: "a"})
	f.create(pod)

	write := func(obj *unstructured.Unstructured, labels map[string]string) {
		t.Helper()

		obj = obj.DeepCopy()
		obj.SetLabels(labels)
		require.NoError(t, unstructured.SetNestedField(obj.Object, "x", "status", "message"))
		require.NoError(t, f.Client.Status().Update(t.Context(), obj))
	}

	calls := count(t, f.name, "")
	write(pod, map[string]string{"app": "x"})
	require.Equal(t, map[string]string{"app": "x", shard: "a"}, f.stored(pod))
	require.Equal(t, calls+1, count(t, f.name, ""))

	write(pod, map[string]string{"app": "x", shard: "b"})
	require.Equal(t, map[string]string{"app": "x", shard: "a"}, f.stored(pod))

	calls = count(t, f.name, "")
	write(pod, map[string]string{"app": "y", shard: "a"})
	require.Equal(t, map[string]string{"app": "y", shard: "a"}, f.stored(pod))
	require.Equal(t, "x", pod.Object["status"].(map[string]any)["message"])

	site := f.website("site")
	site.SetLabels(map[string]string{shard: "a"})
	f.create(site)

	scale := []byte(`{"spec":{"replicas":3}}`)
	require.NoError(t, f.Client.SubResource("scale").Patch(t.Context(), site.DeepCopy(),
		client.RawPatch("application/merge-patch+json", scale)))
	require.Equal(t, calls, count(t, f.name, ""))

	f.stored(site)
	write(site, map[string]string{shard: "b"})
	require.Equal(t, map[string]string{shard: "a"}, f.stored(site), "the API server itself ignores labels here")
}
