package assigner_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

func TestObjectsGetTheirShardInTheSameWrite(t *testing.T) {
	f := running(t, "same-write", "a", "b", "c")

	spread := map[string]int{}

	for i := range 30 {
		name := fmt.Sprintf("site-%d", i)
		got := f.create(f.website(name)).GetLabels()[f.shardLabel()]
		require.Equal(t, f.owner(name), got)
		spread[got]++
	}

	require.Len(t, spread, 3, "all shards get objects")

	t.Run("a shard that joins gets new objects", func(t *testing.T) {
		f.join("d")

		eventually(t, func() bool {
			return f.create(f.website(unique("after-join"))).GetLabels()[f.shardLabel()] == "d"
		}, "the new shard gets an object")
	})

	t.Run("a shard that leaves gets no more", func(t *testing.T) {
		require.NoError(t, f.shard("a").Release(t.Context()))

		f.shards = []string{"b", "c", "d"}
		inARow := 0

		eventually(t, func() bool {
			name := unique("after-leave")
			if inARow++; f.create(f.website(name)).GetLabels()[f.shardLabel()] != f.owner(name) {
				inARow = 0
			}

			return inARow == 30
		}, "the assigner takes note of a released Lease")
	})
}

func TestChildren(t *testing.T) {
	f := running(t, "children", "a", "b", "c")

	owner := f.create(f.website("blog"))

	t.Run("while objects may be moving they wait for the rebalancer", func(t *testing.T) {
		require.NotContains(t, f.create(f.child("early", owner)).GetLabels(), f.shardLabel())
		require.Equal(t, 1, count(t, f.name, "moving"))
	})

	t.Run("when nothing moves they go with their owner", func(t *testing.T) {
		f.settle("a", "b", "c")

		eventually(t, func() bool {
			return f.create(f.child(unique("late"), owner)).GetLabels()[f.shardLabel()] == f.owner("blog")
		}, "children get the shard of their owner")
	})

	t.Run("another version of the owner's API is the same owner", func(t *testing.T) {
		c := f.child("other-version", owner)
		refs := c.GetOwnerReferences()
		refs[0].APIVersion = f.kind.Group + "/v1beta1"
		c.SetOwnerReferences(refs)
		require.Equal(t, f.owner("blog"), f.create(c).GetLabels()[f.shardLabel()])
	})

	t.Run("once more when the shards change", func(t *testing.T) {
		f.join("d")

		eventually(t, func() bool {
			_, labelled := f.create(f.child(unique("move"), owner)).GetLabels()[f.shardLabel()]

			return !labelled
		}, "children wait again")
	})
}

// TestNoCall shows that the API server itself sorts out what the assigner has nothing to say about.
func TestNoCall(t *testing.T) {
	f := running(t, "no-call", "a")

	calls := count(t, f.name, "")
	require.Positive(t, calls)

	owner := f.create(f.website("blog"))
	calls++
	require.Equal(t, calls, count(t, f.name, ""))

	t.Run("objects that have a shard", func(t *testing.T) {
		owner.SetAnnotations(map[string]string{"a": "b"})
		require.NoError(t, f.Client.Update(t.Context(), owner))
		require.Equal(t, calls, count(t, f.name, ""))
	})

	for what, refs := range map[string][]metav1.OwnerReference{
		"no-owner": nil,
		"other-kind": {{APIVersion: f.kind.Group + "/v1", Kind: "Webshop", Name: "blog", UID: "1",
			Controller: new(true)}},
		"other-group": {{APIVersion: "other.example.org/v1", Kind: f.kind.Kind, Name: "blog", UID: "1",
			Controller: new(true)}},
		"core-group": {{APIVersion: "v1", Kind: f.kind.Kind, Name: "blog", UID: "1", Controller: new(true)}},
		"group-prefix": {{APIVersion: f.kind.Group + ".evil/v1", Kind: f.kind.Kind, Name: "blog", UID: "1",
			Controller: new(true)}},
		"no-controller": {{APIVersion: f.kind.Group + "/v1", Kind: f.kind.Kind, Name: "blog", UID: "1"}},
		"not-controller": {{APIVersion: f.kind.Group + "/v1", Kind: f.kind.Kind, Name: "blog", UID: "1",
			Controller: new(false)}},
	} {
		t.Run(what, func(t *testing.T) {
			c := f.child(what, owner)
			c.SetOwnerReferences(refs)
			f.create(c)
			c.SetAnnotations(map[string]string{"a": "b"})
			require.NoError(t, f.Client.Update(t.Context(), c))
			require.Equal(t, calls, count(t, f.name, ""))
		})
	}

	t.Run("the rebalancer", func(t *testing.T) {
		require.NoError(t, f.rebalancer().Create(t.Context(), f.website("written-by-the-rebalancer")))
		require.Equal(t, calls, count(t, f.name, ""))
	})

	t.Run("other namespaces", func(t *testing.T) {
		w := f.website("elsewhere")
		w.SetNamespace(f.Namespace(t))
		f.create(w)
		require.Equal(t, calls, count(t, f.name, ""))
	})

	t.Run("and still it is called for its own", func(t *testing.T) {
		f.create(f.child("own", owner))
		require.Equal(t, calls+1, count(t, f.name, ""))
	})
}

func TestWritesNeverFail(t *testing.T) {
	f := newFixtureOf(t, "never-fail", nil)
	r := start(t, f.Plane)
	eventually(t, func() bool { return f.reason() == "True Registered" }, "the webhook is registered")

	c, warn := f.warned()

	t.Run("without a shard, but a person is told", func(t *testing.T) {
		eventually(t, func() bool {
			w := f.website(unique("no-shard"))
			require.NoError(t, c.Create(t.Context(), w))
			require.NotContains(t, w.GetLabels(), f.shardLabel())

			return warn.take() == `ClusterRing "never-fail" has no available shard: the object waits unassigned until there is one`
		}, "the user is warned")
		require.Positive(t, count(t, f.name, "no_shard"))
	})

	t.Run("for a ring that does not exist", func(t *testing.T) {
		stale := f.configuration()
		stale.ObjectMeta = metav1.ObjectMeta{Name: "unknown-ring.example.org"}
		sharder(stale).ClientConfig.URL = new(r.url + contract.WebhookPath("nowhere"))
		require.NoError(t, f.Client.Create(t.Context(), stale))
		t.Cleanup(func() {
			require.NoError(t, f.Client.Delete(context.WithoutCancel(t.Context()),
				&admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: stale.ObjectMeta}))
		})

		before := strayed(t)

		eventually(t, func() bool {
			require.NoError(t, c.Create(t.Context(), f.website(unique("unknown-ring"))))

			return strayed(t) > before
		}, "the API server calls the unknown ring")
	})

	t.Run("without an assigner", func(t *testing.T) {
		r.stop()
		require.NotNil(t, f.configuration(), "the API server still asks")

		for i := range 10 {
			w := f.create(f.website(fmt.Sprintf("no-assigner-%d", i)))
			require.NotContains(t, w.GetLabels(), f.shardLabel())
		}
	})

	t.Run("and with one again they are assigned", func(t *testing.T) {
		f.join("a")
		start(t, f.Plane)
		f.asked()

		// What was missed gets its shard by its next update.
		w := f.website("no-assigner-0")
		require.NoError(t, f.Client.Get(t.Context(), client.ObjectKeyFromObject(w), w))
		w.SetAnnotations(map[string]string{"a": "b"})
		require.NoError(t, f.Client.Update(t.Context(), w))
		require.Equal(t, "a", w.GetLabels()[f.shardLabel()])
	})
}

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

// The API server does not call the assigner for main objects that the ring does not select. The policies of the
// assigner admit that.
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
		"theirs": {"operator", "theirs"}, "nobodys": {"operator", ""}, "dev": {"example.org/stage", "dev"},
		"no-stage": {"example.org/stage", ""},
		"old":      {"old", "yes"}, "no-team": {"team", ""}, "ignored": {"ignore", "x"},
	} {
		u := f.create(f.labelled(name, kv...))
		require.NotContains(t, u.GetLabels(), f.shardLabel(), name)
		u.SetAnnotations(map[string]string{"a": "b"})
		require.NoError(t, f.Client.Update(t.Context(), u))
	}

	require.Equal(t, calls, count(t, f.name, ""), "nobody is asked")

	foreign := f.create(f.labelled("foreign", "operator", "theirs"))
	require.NotContains(t, f.create(f.child("of-foreign", foreign)).GetLabels(), f.shardLabel(), "it is not hashed")
	eventually(t, func() bool { return f.create(f.child(unique("child"), owner)).GetLabels()[f.shardLabel()] == "a" },
		"children go to the shard of their owner")

	foreign.SetLabels(f.labelled("").GetLabels())
	require.NoError(t, f.Client.Update(t.Context(), foreign))
	require.Positive(t, count(t, f.name, "handover"), "what follows it goes first")

	// A write that takes an object out of the selection takes it from no shard.
	owner.SetLabels(map[string]string{"operator": "theirs"})
	require.NoError(t, f.Client.Update(t.Context(), owner))
	require.Equal(t, map[string]string{"operator": "theirs", f.shardLabel(): "a"}, owner.GetLabels())
}

func TestInvalidObjectSelector(t *testing.T) {
	f := running(t, "invalid-selector", "a")
	before := f.configuration().Webhooks

	f.changeRing(func(r *v1alpha1.ClusterRing) {
		r.Spec.ObjectSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"not a label": "x"}}
	})
	eventually(t, func() bool { return f.reason() == "False RegistrationFailed" }, "the selector is reported")
	require.Contains(t, apimeta.FindStatusCondition(f.ring().Status.Conditions,
		v1alpha1.ConditionWebhookRegistered).Message, "spec.objectSelector")
	require.Equal(t, before, f.configuration().Webhooks, "nothing changes")

	c, warned := f.warned()
	u := f.website("waits")
	require.NoError(t, c.Create(t.Context(), u))
	require.NotContains(t, u.GetLabels(), f.shardLabel())
	require.Contains(t, warned.take(), "spec.objectSelector")
}
