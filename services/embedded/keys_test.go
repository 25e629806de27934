package embedded

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/leasetest"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

const (
	ownLabel = "cloudapi.example.com/shard"
	tenant   = "example.com/tenant"
)

// TestLabelAndKeysOfTheRing: with a label of its own, a ring is sharded once its shards have the permission to write the label; objects with one key
// are at one shard; and without a webhook, a change of the key is found, too.
func TestLabelAndKeysOfTheRing(t *testing.T) {
	w := newWorld(t, localplane.Shared(t), func(ring *v1alpha1.ClusterRing) {
		ring.Spec.ShardLabel = ownLabel
		ring.Spec.Resources[0].Key = &v1alpha1.ObjectKey{Type: v1alpha1.KeyLabel, Label: tenant}
	})

	for _, name := range []string{"a", "b", "c"} {
		s := &leasetest.Shard{Client: w.client, Ring: ringName, Namespace: namespace, Name: name, Duration: longest, ShardLabel: ownLabel}
		require.NoError(t, s.Acquire(t.Context()))
	}

	w.start(w.options())

	require.Eventually(t, func() bool {
		c := meta.FindStatusCondition(w.ring().Status.Conditions, v1alpha1.ConditionAssigned)

		return c != nil && strings.Contains(c.Message, "may not list clusterrings")
	}, patience, interval, "the condition names the permission")

	w.grant("example-ring-list", rbacv1.PolicyRule{
		APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{"clusterrings"}, Verbs: []string{"list"},
	})

	require.Eventually(t, func() bool {
		c := meta.FindStatusCondition(w.ring().Status.Conditions, v1alpha1.ConditionAssigned)

		return c != nil && strings.Contains(c.Message, "may not write the label "+ownLabel)
	}, patience, interval, "the condition names the permission")

	w.grant("example-shard-label", rbacv1.PolicyRule{
		APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{contract.ResourceShardLabels}, ResourceNames: []string{ownLabel}, Verbs: []string{"write"},
	})

	at := map[string]string{} // the shard of each tenant

	for _, name := range []string{"one", "two", "three", "four", "five", "six"} {
		value := "acme"
		if len(at) == 1 {
			value = "beta-" + name // until one of them is at another shard than acme
		}

		u := website(name, w.objects)
		u.SetLabels(map[string]string{tenant: value})
		require.NoError(t, w.client.Create(t.Context(), u))

		shard := w.labelled(name)
		if at[value] == "" {
			at[value] = shard
		}

		require.Equal(t, at[value], shard, "%s is with the others of %s", name, value)
	}

	other := ""

	for value, shard := range at {
		if shard != at["acme"] {
			other = value
		}
	}

	if other == "" {
		t.Skip("all tenants are at one shard") // never with these names
	}

	// The label is changed where no webhook sees it. The audit finds it, and asks the shard for the object.
	patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"`+tenant+`":"`+other+`"}}}`))
	require.NoError(t, w.client.Patch(t.Context(), website("one", w.objects), patch))

	require.Eventually(t, func() bool {
		u := website("one", w.objects)
		require.NoError(t, w.client.Get(t.Context(), client.ObjectKeyFromObject(u), u))

		return u.GetLabels()[ownLabel+contract.DrainSuffix] != ""
	}, 3*time.Minute, interval, "the shard is asked to hand the object over")
}

// grant gives the shards one more right, in a ClusterRole of this name.
func (w *world) grant(name string, right rbacv1.PolicyRule) {
	w.Helper()

	meta := metav1.ObjectMeta{Name: name}
	role := &rbacv1.ClusterRole{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{right}}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: meta.Name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: "example-shard"}},
	}

	for _, obj := range []client.Object{role, binding} {
		require.NoError(w, w.client.Create(w.Context(), obj))
		w.Cleanup(func() { require.NoError(w, w.client.Delete(context.Background(), obj)) })
	}
}

// labelled waits until a Website has the label of the ring, and returns the shard.
func (w *world) labelled(name string) string {
	w.Helper()

	shard := ""

	require.Eventually(w, func() bool {
		u := website(name, w.objects)
		require.NoError(w, w.client.Get(w.Context(), client.ObjectKeyFromObject(u), u))
		shard = u.GetLabels()[ownLabel]

		return shard != ""
	}, patience, interval, "%s gets a shard", name)

	return shard
}
