package assigner_test

import (
	"context"
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
	site := func(labels map[string]string) *unstructured.Unstructured {
		w := f.website(unique("site"))
		w.SetLabels(labels)

		return f.create(w)
	}
	patch := func(c client.Client, w *unstructured.Unstructured, labels string) {
		t.Helper()
		require.NoError(t, c.Patch(t.Context(), w,
			client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":`+labels+`},"spec":{"x":"y"}}`))))
	}

	t.Run("an edit", func(t *testing.T) {
		w := site(map[string]string{shard: "a"})
		calls := count(t, f.name, "")
		patch(c, w, `{"`+shard+`":"b","app":"x"}`)
		require.Equal(t, map[string]string{shard: "a", "app": "x"}, w.GetLabels())
		require.Equal(t, "y", w.Object["spec"].(map[string]any)["x"])
		require.Contains(t, warned.take(), "was restored")
		require.Equal(t, calls+1, count(t, f.name, ""))

		patch(c, w, `{"`+shard+`":"","app":"z"}`)
		require.Equal(t, map[string]string{shard: "a", "app": "z"}, w.GetLabels())
		patch(c, w, `{"`+shard+`":"of-nobody"}`)
		require.Equal(t, "a", w.GetLabels()[shard])
		patch(f.as("tool"), w, `{"`+shard+`":"b"}`)
		require.Equal(t, "a", w.GetLabels()[shard], "one with every permission does not know of this one")
		require.NoError(t, f.Client.Delete(t.Context(), w))
	})

	t.Run("an edit of a child", func(t *testing.T) {
		child := f.child(unique("child"), site(map[string]string{shard: "a"}))
		child.SetLabels(map[string]string{shard: "a"})
		patch(c, f.create(child), `{"`+shard+`":"b"}`)
		require.Equal(t, "a", child.GetLabels()[shard])
	})

	t.Run("no call while the label stays", func(t *testing.T) {
		w := site(map[string]string{shard: "a"})
		calls := count(t, f.name, "")
		patch(c, w, `{"app":"x"}`)
		patch(c, w, `{"`+drain+`":"b"}`)
		patch(c, w, `{"`+drain+`":null}`)
		require.Equal(t, calls, count(t, f.name, ""))
		require.Equal(t, map[string]string{shard: "a", "app": "x"}, w.GetLabels())
	})

	t.Run("the shard releases it", func(t *testing.T) {
		calls := count(t, f.name, "")
		w := site(map[string]string{shard: "a", drain: "b"})
		patch(c, w, `{"`+shard+`":"b","`+drain+`":null}`)
		require.Equal(t, map[string]string{shard: "b"}, w.GetLabels())

		w = site(map[string]string{shard: "a", drain: "true"})
		patch(c, w, `{"`+shard+`":null,"`+drain+`":null}`)
		require.NotContains(t, w.GetLabels(), shard)
		require.Equal(t, calls, count(t, f.name, ""))
	})

	t.Run("another shard than the next one", func(t *testing.T) {
		w := site(map[string]string{shard: "a", drain: "b"})
		patch(c, w, `{"`+shard+`":"c","`+drain+`":null}`)
		require.Equal(t, "a", w.GetLabels()[shard])
	})

	t.Run("the rebalancer, and one who was granted it", func(t *testing.T) {
		w := site(map[string]string{shard: "a"})
		calls := count(t, f.name, "")
		patch(f.as("expert"), w, `{"`+shard+`":"b"}`)
		require.Equal(t, "b", w.GetLabels()[shard])
		require.NoError(t, f.patch(f.rebalancer(), w, `{"metadata":{"labels":{"`+shard+`":"c"}}}`))
		require.Equal(t, "c", f.stored(w)[shard])
		require.Equal(t, calls, count(t, f.name, ""))
	})
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
