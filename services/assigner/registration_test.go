package assigner_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

func TestRegistration(t *testing.T) {
	f := newFixture(t, "registration", "a")
	r := start(t, f.Plane)
	f.registered()

	want := f.configuration()

	t.Run("is of the contract", func(t *testing.T) {
		require.Equal(t, want.Name, "sharding-"+contract.RingSuffix(f.name))
		require.Equal(t, f.name, want.Labels["alpha.sharding.timebertt.dev/clusterring"])
		require.Equal(t, f.ring().UID, want.OwnerReferences[0].UID)
		require.Len(t, want.Webhooks, 3)
		w := sharder(want)
		require.Equal(t, "sharder.sharding.timebertt.dev", w.Name)
		require.Regexp(t, "^"+r.url+"/webhooks/sharder/clusterring/"+f.name+"/[0-9a-f]{32}$", *w.ClientConfig.URL)
		require.Len(t, w.Rules, 2)
	})

	t.Run("stays as it is while nothing changes", func(t *testing.T) {
		r.stop()
		r = launchAt(f.t, f.Plane, r.url[len("https://"):], "--webhook-url="+r.url)
		eventually(t, r.ready, "the assigner becomes ready")

		// That another ring is registered shows that this one has been looked at.
		other := newFixture(t, "registration-other", "x")
		other.registered()
		require.Equal(t, want.ResourceVersion, f.configuration().ResourceVersion)
	})

	restored := func() bool {
		c := f.configuration()
		return c != nil && c.Labels[contract.LabelClusterRing] == f.name && equalWebhooks(c, want)
	}

	// Few edits: the pauses between restores double.
	for what, change := range map[string]func(c *admissionregistrationv1.MutatingWebhookConfiguration){
		"its fields": func(c *admissionregistrationv1.MutatingWebhookConfiguration) {
			w := sharder(c)
			w.Rules, w.ClientConfig.CABundle, w.FailurePolicy = nil, nil, ptr.To(admissionregistrationv1.Fail)
		},
		"webhook and label": func(c *admissionregistrationv1.MutatingWebhookConfiguration) { c.Webhooks, c.Labels = nil, nil },
		"what is not ours": func(c *admissionregistrationv1.MutatingWebhookConfiguration) {
			c.Labels[contract.LabelClusterRing] = "x"

			more := *sharder(c).DeepCopy()
			more.Name = "more.example.org"
			c.Webhooks = append(c.Webhooks, more)
		},
	} {
		t.Run("is restored after an edit of "+what, func(t *testing.T) {
			edited := f.configuration()
			change(edited)
			require.NoError(t, f.Client.Update(t.Context(), edited))
			eventually(t, restored, "the configuration is restored")
		})

		if t.Failed() {
			return
		}
	}

	t.Run("is restored after its deletion", func(t *testing.T) {
		require.NoError(t, f.Client.Delete(t.Context(), f.configuration()))
		eventually(t, restored, "the configuration is restored")
		f.asked()
	})

	t.Run("follows the ring", func(t *testing.T) {
		f.changeRing(func(r *v1alpha1.ClusterRing) { r.Spec.Resources[0].ControlledResources = nil })
		eventually(t, func() bool { return f.rules() == 1 }, "the rules follow")
		require.Len(t, sharder(f.configuration()).MatchConditions, 1)
	})
}

func equalWebhooks(a, b *admissionregistrationv1.MutatingWebhookConfiguration) bool {
	return equality.Semantic.DeepEqual(a.Webhooks, b.Webhooks)
}

func TestDeletedRings(t *testing.T) {
	f := newFixture(t, "deleted", "a")

	// A configuration of a ring that was deleted while no assigner ran. There is no garbage collector here.
	stale := &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{
		Name: contract.WebhookConfigurationName("long-gone"), Labels: map[string]string{contract.LabelClusterRing: "long-gone"},
	}}
	require.NoError(t, f.Client.Create(t.Context(), stale))

	foreign := &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "foreign.example.org"}}
	require.NoError(t, f.Client.Create(t.Context(), foreign))
	t.Cleanup(func() { require.NoError(t, f.Client.Delete(context.WithoutCancel(t.Context()), foreign)) })

	start(t, f.Plane)
	f.registered()

	gone := func(c *admissionregistrationv1.MutatingWebhookConfiguration) func() bool {
		return func() bool {
			return client.IgnoreNotFound(f.Client.Get(t.Context(), client.ObjectKeyFromObject(c), c.DeepCopy())) == nil &&
				f.Client.Get(t.Context(), client.ObjectKeyFromObject(c), c.DeepCopy()) != nil
		}
	}

	eventually(t, gone(stale), "a left-over configuration is removed")
	require.False(t, gone(foreign)(), "others are left alone")

	t.Run("a ring that waits for its finalizer has no webhook", func(t *testing.T) {
		f.changeRing(func(r *v1alpha1.ClusterRing) { r.Finalizers = []string{contract.FinalizerRebalancer} })
		require.NoError(t, f.Client.Delete(t.Context(), f.ring()))
		eventually(t, func() bool { return f.configuration() == nil && f.reason() == "False Deleting" }, "webhook removed, condition says so")
		require.NotContains(t, f.create(f.website("while-deleting")).GetLabels(), f.shardLabel())
	})

	t.Run("one that is made again is another", func(t *testing.T) {
		f.changeRing(func(r *v1alpha1.ClusterRing) { r.Finalizers = nil })
		eventually(t, func() bool { return count(t, f.name, "") == 0 }, "its metrics are gone")
		f.declare(v1alpha1.RingResource{Group: f.kind.Group, Resource: "websites"})
		f.registered()
		require.Equal(t, f.ring().UID, f.configuration().OwnerReferences[0].UID)
	})

	t.Run("a ring without a finalizer goes at once", func(t *testing.T) {
		require.NoError(t, f.Client.Delete(t.Context(), f.ring()))
		eventually(t, func() bool { return f.configuration() == nil }, "webhook removed")
	})
}

func TestMissingResource(t *testing.T) {
	f := newFixture(t, "missing", "a")
	start(t, f.Plane)
	f.registered()

	message := func() string { return f.ring().Status.Conditions[0].Message }

	// In another version of a group that discovery knows already.
	shop := schema.GroupVersionKind{Group: f.kind.Group, Version: "v2", Kind: "Webshop"}
	f.changeRing(func(r *v1alpha1.ClusterRing) {
		r.Spec.Resources = append(r.Spec.Resources, v1alpha1.RingResource{Group: shop.Group, Resource: "webshops"})
	})
	eventually(t, func() bool { return f.reason() == "False ResourcesMissing" }, "the condition says that a resource is missing")
	require.Contains(t, message(), "webshops."+shop.Group)
	require.NotContains(t, message(), "websites")

	t.Run("those that exist are registered", func(t *testing.T) {
		require.Equal(t, 2, f.rules())
		f.asked()
	})

	t.Run("it is registered as soon as it appears", func(t *testing.T) {
		f.serve(shop)
		eventually(t, func() bool { return f.rules() == 3 && f.reason() == "True Registered" }, "all resources are registered")
		f.asked()

		open := func() string {
			w := f.website(unique("shop"))
			w.SetGroupVersionKind(shop)

			return f.create(w).GetLabels()[f.shardLabel()]
		}
		require.Empty(t, open(), "nobody has recorded yet that there may be labels to remove")

		f.record(f.ring().Spec.Resources...)
		eventually(t, func() bool { return open() == "a" }, "objects of the new resource get a shard")
	})

	t.Run("a group that does not exist is no different", func(t *testing.T) {
		f.changeRing(func(r *v1alpha1.ClusterRing) {
			r.Spec.Resources = append(r.Spec.Resources, v1alpha1.RingResource{Group: "nowhere.example.org", Resource: "things"})
		})
		eventually(t, func() bool { return f.reason() == "False ResourcesMissing" }, "the condition says that a resource is missing")
		require.Contains(t, message(), "things.nowhere.example.org")
		f.serve(schema.GroupVersionKind{Group: "nowhere.example.org", Version: "v1", Kind: "Thing"})
		eventually(t, func() bool { return f.reason() == "True Registered" }, "nothing is missing any more")
	})
}

// TestResourceThatGoes deletes a custom resource whose ring does not change, and makes it again.
func TestResourceThatGoes(t *testing.T) {
	f := newFixture(t, "goes", "a")
	start(t, f.Plane)
	f.registered()
	require.Equal(t, 2, f.rules())

	crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "websites." + f.kind.Group}}
	require.NoError(t, f.Client.Delete(t.Context(), crd))
	// It takes until the assigner looks again, and before that until the API server has removed what it served.
	require.Eventually(t, func() bool { return f.reason() == "False ResourcesMissing" && f.rules() == 1 }, 3*patience, interval,
		"the condition says that a resource is missing")
	require.Contains(t, f.ring().Status.Conditions[0].Message, crd.Name)

	f.serve(f.kind)
	f.registered()
	require.Equal(t, 2, f.rules())
}

func TestRingOfMissingResourcesOnly(t *testing.T) {
	f := &fixture{t: t, name: "all-missing", kind: websiteKind("all-missing")}
	f.Plane = localplane.Shared(t)
	f.namespace = f.Namespace(t)
	f.join("a")
	f.declare(v1alpha1.RingResource{Group: f.kind.Group, Resource: "websites"})
	start(t, f.Plane)

	eventually(t, func() bool { return f.reason() == "False ResourcesMissing" }, "the condition says that resources are missing")
	f.serve(f.kind)
	f.registered()
}
