package assigner_test

import (
	"bytes"
	"context"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

// TestYoungerRingWithTheSameLabel: nothing is registered for it until the older one is gone.
func TestYoungerRingWithTheSameLabel(t *testing.T) {
	const label = "shared.example.com/shard"

	older := (&fixture{t: t, name: "shared-a", label: label}).begin(nil, "a")
	younger := (&fixture{t: t, name: "shared-b", label: label}).begin(nil, "b") // of the same second, the name decides
	younger.changeRing(func(r *v1alpha1.ClusterRing) {
		r.Spec.Fence = &v1alpha1.Fence{Mode: v1alpha1.FenceEnforce,
			ServiceAccounts: []v1alpha1.ServiceAccountReference{{Namespace: "n", Name: "a"}}}
	})

	// It may have been alone for a moment.
	registered := younger.emptyConfiguration()
	registered.Labels = map[string]string{contract.LabelClusterRing: younger.name}
	require.NoError(t, younger.Client.Create(t.Context(), registered))

	start(t, older.Plane)
	older.registered()

	eventually(t, func() bool { return younger.reason() == "False ShardLabelInUse" }, "the younger ring is refused")

	c := apimeta.FindStatusCondition(younger.ring().Status.Conditions, v1alpha1.ConditionWebhookRegistered)
	require.Contains(t, c.Message, "ring shared-a, which is older, uses the same spec.shardLabel "+label)
	require.True(t, apimeta.IsStatusConditionFalse(younger.ring().Status.Conditions, v1alpha1.ConditionFenced))
	require.Empty(t, younger.ring().Status.ShardLabel)
	require.Nil(t, younger.configuration())
	require.Empty(t, younger.create(younger.website(unique("site"))).GetLabels())

	// A third ring changes nothing, nor does the deletion of the older one until it is gone.
	older.changeRing(func(r *v1alpha1.ClusterRing) { r.Finalizers = []string{contract.FinalizerRebalancer} })
	require.NoError(t, older.Client.Delete(t.Context(), older.ring()))
	eventually(t, func() bool { return older.reason() == "False Deleting" }, "the older ring is being deleted")
	require.Equal(t, "False ShardLabelInUse", younger.reason())

	younger.changeRing(func(r *v1alpha1.ClusterRing) { r.Spec.Fence = nil })
	older.changeRing(func(r *v1alpha1.ClusterRing) { r.Finalizers = nil })
	younger.registered()
	require.Equal(t, label, younger.ring().Status.ShardLabel)
	require.Equal(t, "b", younger.create(younger.website(unique("site"))).GetLabels()[label])
}

// TestCollidingRings: names that are long enough can be searched until two rings share all that follows from their
// names. The older one works.
func TestCollidingRings(t *testing.T) {
	const first, second = "colliding-rings-of-a-very-long-name-abcdef-27184",
		"colliding-rings-of-a-very-long-name-abcdef-727"
	require.Equal(t, contract.RingSuffix(first), contract.RingSuffix(second))

	older := newFenced(t, first, v1alpha1.FenceEnforce)
	start(t, older.Plane)
	older.registered()
	older.reports("True Enforced")

	younger := newFixture(t, second, "y")
	younger.changeRing(func(r *v1alpha1.ClusterRing) { r.Spec.Fence = older.ring().Spec.Fence })
	eventually(t, func() bool { return younger.reason() == "False ShardLabelInUse" }, "the younger ring is refused")
	require.Contains(t, younger.registration(),
		"ring "+first+", which is older, has the same suffix "+contract.RingSuffix(second))
	require.Contains(t, younger.registration(), "another name")

	require.Empty(t, younger.create(younger.website(unique("site"))).GetLabels())

	before := older.configuration()
	require.Equal(t, first, before.Labels[contract.LabelClusterRing])

	fence := func() *admissionregistrationv1.ValidatingAdmissionPolicyBinding {
		b := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{}
		require.NoError(t, older.Client.Get(t.Context(), client.ObjectKey{Name: contract.FenceName(first)}, b))

		return b
	}
	uid := fence().UID

	// What the younger one leaves is the older one's.
	require.NoError(t, younger.Client.Delete(t.Context(), younger.ring()))

	other := newFixture(t, "after-the-collision", "x")
	other.registered()
	require.Equal(t, before.ResourceVersion, older.configuration().ResourceVersion)
	require.Equal(t, uid, fence().UID)
	require.Equal(t, first, fence().Labels[contract.LabelClusterRing])
}

// path returns the path of the ring's webhook as it is registered.
func (f *fixture) path() string {
	f.t.Helper()

	c := f.configuration()
	require.NotNil(f.t, c)

	to, err := url.Parse(*c.Webhooks[0].ClientConfig.URL)
	require.NoError(f.t, err)

	for _, w := range c.Webhooks {
		require.Equal(f.t, to.String(), *w.ClientConfig.URL)
	}

	return to.Path
}

// Everyone who reaches the port of the webhook learns nothing, and calls of the API server are answered: by replicas
// that start at the same time, after a restart, and after the configuration, which keeps the secret, was deleted or
// replaced.
func TestStrangersLearnNothing(t *testing.T) {
	f := newFixture(t, "strangers", "a")
	first := launch(t, f.Plane)
	second := launch(t, f.Plane, "--webhook-url="+first.url)

	// asks returns the answer to a valid review that is sent to a path.
	asks := func(c *caller, path string) (status int, answer string) {
		status, answer, err := c.post(t.Context(), first.url+path, bytes.NewReader(c.review))
		require.NoError(t, err)

		return status, answer
	}

	hidden := func(replicas ...*replica) {
		t.Helper()

		path := f.path()
		require.Regexp(t, "^"+contract.WebhookPath(f.name)+"/[0-9a-f]{32}$", path)

		for _, r := range replicas {
			c := f.caller(r)
			eventually(t, func() bool {
				status, body := asks(c, path)

				return status == http.StatusOK && strings.Contains(body, `"patch"`)
			}, "the path is answered")

			for _, wrong := range []string{contract.WebhookPath(f.name), contract.WebhookPath(f.name) +
				"/00112233445566778899aabbccddeeff", path + "0", contract.WebhookPath("made-up"), "/"} {
				status, body := asks(c, wrong)
				require.Equal(t, http.StatusNotFound, status, wrong)
				require.Equal(t, "404 page not found\n", body, wrong)
			}
		}
	}

	restart := func() {
		t.Helper()

		first = launchAt(t, f.Plane, strings.TrimPrefix(first.url, "https://"), "--webhook-url="+first.url)
		eventually(t, first.ready, "the assigner becomes ready again")
	}

	eventually(t, first.ready, "the first replica becomes ready")
	eventually(t, second.ready, "the second replica becomes ready")
	f.registered()
	hidden(first, second)

	path := f.path()

	require.NoError(t, f.Client.Delete(t.Context(), f.configuration()))
	eventually(t, func() bool { return f.configuration() != nil }, "the configuration is restored")
	f.asked()
	hidden(first, second)
	require.Equal(t, path, f.path())

	first.stop()
	second.stop()

	restart()
	f.asked()
	hidden(first)
	require.Equal(t, path, f.path())

	first.stop()
	require.NoError(t, f.Client.Delete(context.WithoutCancel(t.Context()), f.configuration()))

	restart()
	eventually(t, func() bool { return f.configuration() != nil }, "the ring is registered again")
	f.asked()
	hidden(first)
	require.NotEqual(t, path, f.path())

	status, _ := asks(f.caller(first), path)
	require.Equal(t, http.StatusNotFound, status, "nobody should be called at the former path")

	// As an earlier version has registered it.
	c := f.configuration()
	before := c.DeepCopy()

	for i := range c.Webhooks {
		c.Webhooks[i].ClientConfig.URL = new(first.url + contract.WebhookPath(f.name))
	}

	require.NoError(t, f.Client.Patch(t.Context(), c, client.MergeFrom(before)))
	eventually(t, func() bool { return f.path() != contract.WebhookPath(f.name) }, "the path gets a secret")
	f.asked()
	hidden(first)
}
