package resources

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/key"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

func TestMain(m *testing.M) { os.Exit(localplane.Main(m, v1alpha1.AddToScheme)) }

func mapper(t *testing.T) meta.RESTMapper {
	t.Helper()

	cfg := localplane.Shared(t).Config

	http, err := rest.HTTPClientFor(cfg)
	require.NoError(t, err)
	t.Cleanup(http.CloseIdleConnections)

	m, err := apiutil.NewDynamicRESTMapper(cfg, http)
	require.NoError(t, err)

	return m
}

func spec(main ...v1alpha1.RingResource) v1alpha1.ClusterRingSpec {
	return v1alpha1.ClusterRingSpec{Resources: main}
}

var deployments = v1alpha1.RingResource{
	Group: "apps", Resource: "deployments",
	ControlledResources: []v1alpha1.ControlledResource{{Group: "apps", Resource: "replicasets"}, {Resource: "configmaps"}},
}

func TestResolve(t *testing.T) {
	set := Resolve(mapper(t), spec(deployments, v1alpha1.RingResource{Resource: "nodes"}))
	require.Empty(t, set.Missing())
	require.Empty(t, set.MissingMessage())
	require.Len(t, set.Main(), 2)
	require.Len(t, set.Controlled(), 2)

	r, role, ok := set.Find(schema.GroupResource{Group: "apps", Resource: "deployments"})
	require.True(t, ok)
	require.Equal(t, Main, role)
	require.Equal(t, Resource{
		GVR:  schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"},
		Kind: schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}, Namespaced: true, Controls: true,
	}, r)

	r, role, ok = set.Find(schema.GroupResource{Resource: "configmaps"})
	require.True(t, ok)
	require.Equal(t, Controlled, role)
	require.True(t, r.Namespaced)

	r, _, ok = set.Find(schema.GroupResource{Resource: "nodes"})
	require.True(t, ok)
	require.False(t, r.Namespaced)

	_, _, ok = set.Find(schema.GroupResource{Resource: "pods"})
	require.False(t, ok)
}

func TestWhatIsMissingDoesNotSpoilTheRest(t *testing.T) {
	set := Resolve(mapper(t), spec(
		v1alpha1.RingResource{Group: "nowhere.example.com", Resource: "ghosts"},
		deployments,
		v1alpha1.RingResource{Group: "apps", Resource: "deployment"}, // a singular name is not a resource
	))
	require.Len(t, set.Main(), 1)
	require.Len(t, set.Missing(), 2)
	require.Contains(t, set.MissingMessage(), "ghosts.nowhere.example.com")
	require.Contains(t, set.MissingMessage(), "did you mean deployments.apps?")
	require.True(t, set.Equal(Resolve(mapper(t), spec(
		deployments,
		v1alpha1.RingResource{Group: "nowhere.example.com", Resource: "ghosts"},
		v1alpha1.RingResource{Group: "apps", Resource: "deployment"},
	))), "whatever the order of what is missing")
	require.False(t, set.Equal(Resolve(mapper(t), spec(deployments))))
}

// The API rejects such a ring; one that was stored before must not flap.
func TestMainAndControlledIsMain(t *testing.T) {
	set := Resolve(mapper(t), spec(deployments, v1alpha1.RingResource{Resource: "configmaps"}))

	_, role, _ := set.Find(schema.GroupResource{Resource: "configmaps"})
	require.Equal(t, Main, role)
}

func TestKinOfTheControllersAlone(t *testing.T) {
	set := Resolve(mapper(t), spec(deployments, v1alpha1.RingResource{Resource: "nodes"}))
	ref := func(apiVersion, kind string, controller *bool) metav1.OwnerReference {
		return metav1.OwnerReference{APIVersion: apiVersion, Kind: kind, Name: "owner", UID: "uid", Controller: controller}
	}

	for _, tc := range []struct {
		name string
		refs []metav1.OwnerReference
		want key.Key
	}{
		{"by its controller", []metav1.OwnerReference{ref("apps/v1", "Deployment", new(true))},
			key.Key{Group: "apps", Kind: "Deployment", Namespace: "ns", Name: "owner"}},
		{"whatever the version", []metav1.OwnerReference{ref("apps/v1beta7", "Deployment", new(true))},
			key.Key{Group: "apps", Kind: "Deployment", Namespace: "ns", Name: "owner"}},
		{"cluster-scoped", []metav1.OwnerReference{ref("v1", "Node", new(true))}, key.Key{Kind: "Node", Name: "owner"}},
		{"the controller among owners",
			[]metav1.OwnerReference{ref("v1", "Node", nil), ref("apps/v1", "Deployment", new(true))},
			key.Key{Group: "apps", Kind: "Deployment", Namespace: "ns", Name: "owner"}},
		{"not by an owner that does not control", []metav1.OwnerReference{ref("apps/v1", "Deployment", new(false))}, key.Key{}},
		{"not by a foreign controller", []metav1.OwnerReference{ref("apps/v1", "StatefulSet", new(true))}, key.Key{}},
		{"not by a kind of another group", []metav1.OwnerReference{ref("other/v1", "Deployment", new(true))}, key.Key{}},
		{"not by a malformed reference", []metav1.OwnerReference{ref("a/b/c", "Deployment", new(true))}, key.Key{}},
		{"not without owner", nil, key.Key{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			obj := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "child", OwnerReferences: tc.refs}}
			r, role, _ := set.Find(schema.GroupResource{Resource: "configmaps"})

			kin, ok, err := set.KinOf(t.Context(), Subject{r, role, obj}, nil)
			require.NoError(t, err)
			require.Equal(t, tc.want != key.Key{}, ok)
			require.Equal(t, tc.want, kin.Key)

			if owner := kin.Owner; ok {
				require.Equal(t, types.NamespacedName{Namespace: tc.want.Namespace, Name: "owner"}, owner.NamespacedName)
				require.Equal(t, types.UID("uid"), owner.UID)
			}
		})
	}

	r, role, _ := set.Find(schema.GroupResource{Group: "apps", Resource: "deployments"})
	kin, ok, err := set.KinOf(t.Context(), Subject{r, role, &metav1.ObjectMeta{Namespace: "ns", Name: "main"}}, nil)
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, Kin{Key: key.Key{Group: "apps", Kind: "Deployment", Namespace: "ns", Name: "main"}}, kin)
}
