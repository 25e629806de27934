package assigner_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

// selects lets the ring shard the objects that meet every kind of requirement, and waits until the API server knows.
func (f *fixture) selects() {
	f.t.Helper()

	f.changeRing(func(r *v1alpha1.ClusterRing) {
		r.Spec.ObjectSelector = &metav1.LabelSelector{
			MatchLabels: map[string]string{"operator": "ours"},
			MatchExpressions: []metav1.LabelSelectorRequirement{
				{Key: "example.org/stage", Operator: metav1.LabelSelectorOpIn, Values: []string{"test", "prod"}},
				{Key: "old", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"yes", "maybe"}},
				{Key: "team", Operator: metav1.LabelSelectorOpExists},
				{Key: "ignore", Operator: metav1.LabelSelectorOpDoesNotExist},
			},
		}
	})
	eventually(f.t, func() bool {
		calls := count(f.t, f.name, "")
		f.create(f.website(unique("unselected")))

		return count(f.t, f.name, "") == calls && f.reason() == "True Registered"
	}, "the API server knows the selector")
}

// labelled returns a website that the ring selects, with labels changed; "" removes one.
func (f *fixture) labelled(name string, kv ...string) *unstructured.Unstructured {
	u := f.website(name)
	labels := map[string]string{"operator": "ours", "example.org/stage": "prod", "team": ""}

	for i := 0; i < len(kv); i += 2 {
		if labels[kv[i]] = kv[i+1]; kv[i+1] == "" {
			delete(labels, kv[i])
		}
	}

	u.SetLabels(labels)

	return u
}

// The API server does not call the assigner for main objects that the ring does not select. The policies of the assigner admit that.
func TestObjectSelector(t *testing.T) {
	f := newFixture(t, "object-selector", "a")
	f.mayRead("websites")
	start(t, f.Plane)
	f.registered()
	f.selects()
	f.settle("a")

	owner := f.create(f.labelled("ours"))
	require.Equal(t, "a", owner.GetLabels()[f.shardLabel()])
	require.Equal(t, "a", f.create(f.labelled("not-so-old", "old", "no")).GetLabels()[f.shardLabel()])

	calls := count(t, f.name, "")

	for name, kv := range map[string][]string{
		"theirs": {"operator", "theirs"}, "nobodys": {"operator", ""}, "dev": {"example.org/stage", "dev"}, "no-stage": {"example.org/stage", ""},
		"old": {"old", "yes"}, "no-team": {"team", ""}, "ignored": {"ignore", "x"},
	} {
		u := f.create(f.labelled(name, kv...))
		require.NotContains(t, u.GetLabels(), f.shardLabel(), name)
		u.SetAnnotations(map[string]string{"a": "b"})
		require.NoError(t, f.Client.Update(t.Context(), u))
	}

	require.Equal(t, calls, count(t, f.name, ""), "nobody is asked")

	foreign := f.create(f.labelled("foreign", "operator", "theirs"))
	require.NotContains(t, f.create(f.child("of-foreign", foreign)).GetLabels(), f.shardLabel(), "it is not hashed")
	eventually(t, func() bool { return f.create(f.child(unique("child"), owner)).GetLabels()[f.shardLabel()] == "a" }, "children go to the shard of their owner")

	foreign.SetLabels(f.labelled("").GetLabels())
	require.NoError(t, f.Client.Update(t.Context(), foreign))
	require.Positive(t, count(t, f.name, "handover"), "what follows it goes first")

	// A write that takes an object out of the selection takes it from no shard.
	owner.SetLabels(map[string]string{"operator": "theirs"})
	require.NoError(t, f.Client.Update(t.Context(), owner))
	require.Equal(t, map[string]string{"operator": "theirs", f.shardLabel(): "a"}, owner.GetLabels())
}

func TestInvalidObjectSelector(t *testing.T) {
	f := newFixture(t, "invalid-selector", "a")
	start(t, f.Plane)
	f.registered()
	before := f.configuration().Webhooks

	f.changeRing(func(r *v1alpha1.ClusterRing) {
		r.Spec.ObjectSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"not a label": "x"}}
	})
	eventually(t, func() bool { return f.reason() == "False RegistrationFailed" }, "the selector is reported")
	require.Contains(t, apimeta.FindStatusCondition(f.ring().Status.Conditions, v1alpha1.ConditionWebhookRegistered).Message, "spec.objectSelector")
	require.Equal(t, before, f.configuration().Webhooks, "nothing changes")

	c, warned := f.warned()
	u := f.website("waits")
	require.NoError(t, c.Create(t.Context(), u))
	require.NotContains(t, u.GetLabels(), f.shardLabel())
	require.Contains(t, warned.take(), "spec.objectSelector")
}
