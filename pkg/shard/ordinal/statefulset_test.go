package ordinal

import (
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	appsv1client "k8s.io/client-go/kubernetes/typed/apps/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/clusterring/clusterring/pkg/internal/testenv"
	"github.com/clusterring/clusterring/pkg/shard"
)

func TestMain(m *testing.M) { testenv.VerifyMain(m) }

func TestKey(t *testing.T) {
	site := schema.GroupKind{Group: "example.com", Kind: "Site"}
	one := &metav1.ObjectMeta{Namespace: "a", Name: "one", UID: "3"}
	require.Equal(t, uint64(0x4f846302988cbdbb), Key(site, one), "all versions must use the same number")

	for _, other := range []*metav1.ObjectMeta{{Namespace: "b", Name: "one"}, {Namespace: "a", Name: "two"}} {
		require.NotEqual(t, Key(site, one), Key(site, other))
	}

	require.NotEqual(t, Key(site, one), Key(schema.GroupKind{Kind: "Site"}, one))
}

func TestShares(t *testing.T) {
	set := &appsv1.StatefulSet{Spec: appsv1.StatefulSetSpec{Replicas: new(int32(3)),
		Ordinals: &appsv1.StatefulSetOrdinals{Start: 5}}}
	for ordinal, want := range map[int]share{4: {start: 5}, 5: {5, 0, 3}, 7: {5, 2, 3}, 8: {start: 5}} {
		require.Equal(t, want, shareOf(set, ordinal), "ordinal %d", ordinal)
	}

	require.Equal(t, share{0, 0, 1}, shareOf(&appsv1.StatefulSet{}, 0), "the API's default")
	require.True(t, share{0, 2, 3}.owns(302))
	require.False(t, share{0, 2, 3}.owns(301))
	require.False(t, share{}.owns(0), "no replicas")
}

func TestPodsThatCannotClaim(t *testing.T) {
	namespace := testenv.Namespace(t)

	add := func(name string) error {
		options := manager.Options{Metrics: metricsserver.Options{BindAddress: "0"}}
		mgr, err := shard.NewManager(testenv.Config(t), options, shard.Options{
			Ring: "example", Name: name, Namespace: namespace, Kinds: shard.Kinds{shard.Main(&corev1.ConfigMap{})},
		})
		require.NoError(t, err)

		return AddClaims(t.Context(), mgr,
			Claims{Main: []client.Object{&corev1.ConfigMap{}}, Namespaces: []string{namespace}})
	}

	for name, want := range map[string]string{
		"web":         `the name "web" contains no ordinal: only Pods of a StatefulSet have an ordinal`,
		"web-x7k2p":   `"web-x7k2p" does not end with an ordinal`,
		"web-01":      `"web-01" does not end with an ordinal`,
		"front-24567": "no StatefulSet front exists, which Pod front-24567 should belong to: only Pods of a StatefulSet have an ordinal, as web-0 does",
	} {
		require.ErrorContains(t, add(name), want)
	}

	restricted := testenv.Config(t)
	restricted.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:" + namespace + ":controller"}
	apps, err := appsv1client.NewForConfig(restricted)
	require.NoError(t, err)
	p, err := podOf("web-0", apps.StatefulSets(namespace))
	require.NoError(t, err)

	_, err = p.share(t.Context())
	require.ErrorContains(t, err, "grant get on statefulsets (API group apps, resource name web)")
}
