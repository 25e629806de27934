package resources

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/key"
)

func spec(main ...v1alpha1.RingResource) v1alpha1.ClusterRingSpec {
	return v1alpha1.ClusterRingSpec{Resources: main}
}

var deployments = v1alpha1.RingResource{
	Group: "apps", Resource: "deployments",
	ControlledResources: []v1alpha1.ControlledResource{
		{Group: "apps", Resource: "replicasets"}, {Resource: "pods"}, {Resource: "secrets"},
	},
}

func TestWhatIsMissingDoesNotSpoilTheRest(t *testing.T) {
	set := Resolve(chainsMapper(), spec(
		v1alpha1.RingResource{Group: "nowhere.example.com", Resource: "ghosts"},
		deployments,
		v1alpha1.RingResource{Group: "apps", Resource: "ghosts"},
	))
	require.Len(t, set.Main(), 1)
	require.Len(t, set.Missing(), 2)
	require.Contains(t, Message(set.Missing()), "ghosts.nowhere.example.com")
	require.True(t, set.Equal(Resolve(chainsMapper(), spec(
		deployments,
		v1alpha1.RingResource{Group: "nowhere.example.com", Resource: "ghosts"},
		v1alpha1.RingResource{Group: "apps", Resource: "ghosts"},
	))), "whatever the order of what is missing")
	require.False(t, set.Equal(Resolve(chainsMapper(), spec(deployments))))
}

// The API rejects such a ring; one that was stored before must not flap.
func TestMainAndControlledIsMain(t *testing.T) {
	set := Resolve(chainsMapper(), spec(deployments, v1alpha1.RingResource{Resource: "secrets"}))

	_, role, _ := set.Find(schema.GroupResource{Resource: "secrets"})
	require.Equal(t, Main, role)
}

var errAway = errors.New("the API server is away")

// people are objects by UID, with their controllers; nil if an object has none.
type people map[types.UID]*metav1.OwnerReference

func (p people) ControllerOf(_ context.Context, of Owner) (controller *metav1.OwnerReference, found bool, err error) {
	if of.UID == "unreadable" {
		return nil, false, errAway
	}

	controller, found = p[of.UID]

	return controller, found, nil
}

// LabelsOf returns the name of a Node as its tenant; the Node bare has none, and the Node gone does not exist.
func (p people) LabelsOf(_ context.Context, of Owner) (has Labels, found bool, err error) {
	switch of.Name {
	case "unreadable":
		return has, false, errAway
	case "bare":
		return Labels{Selected: of.Resource.Selects(nil)}, true, nil
	case "gone":
		return has, false, nil
	}

	all := map[string]string{"tenant": of.Name}

	return Labels{All: all, Selected: of.Resource.Selects(all)}, true, nil
}

// ref is a reference to an owner of kind Deployment.
func ref(apiVersion string, controller *bool) *metav1.OwnerReference {
	return &metav1.OwnerReference{APIVersion: apiVersion, Kind: "Deployment", Name: "web", UID: "web",
		Controller: controller}
}

func by(kind, name string) *metav1.OwnerReference {
	versions := map[string]string{"Deployment": "apps/v1", "ReplicaSet": "apps/v1", "Node": "v1", "Pod": "v1",
		"Secret": "v1", "Foreign": "example.com/v1"}

	return &metav1.OwnerReference{APIVersion: versions[kind], Kind: kind, Name: name, UID: types.UID(name),
		Controller: new(true)}
}

func chainsMapper() meta.RESTMapper {
	m := meta.NewDefaultRESTMapper(nil)
	apps := schema.GroupVersion{Group: "apps", Version: "v1"}
	m.Add(apps.WithKind("Deployment"), meta.RESTScopeNamespace)
	m.Add(apps.WithKind("ReplicaSet"), meta.RESTScopeNamespace)
	m.Add(corev1.SchemeGroupVersion.WithKind("Pod"), meta.RESTScopeNamespace)
	m.Add(corev1.SchemeGroupVersion.WithKind("Secret"), meta.RESTScopeNamespace)
	m.Add(corev1.SchemeGroupVersion.WithKind("Node"), meta.RESTScopeRoot)

	return m
}

func chainsSpec() v1alpha1.ClusterRingSpec {
	return spec(deployments, v1alpha1.RingResource{Resource: "nodes"})
}

func chains() *Set { return Resolve(chainsMapper(), chainsSpec()) }

// An object follows the main object at the end of its chain of controllers, if all of them are part of the ring. Of its
// owners, only the controller counts, in whatever version.
func TestKinOf(t *testing.T) {
	all := people{
		"rs":      by("Deployment", "web"),
		"of-node": by("Node", "node-1"),
		"alone":   nil,
		"foreign": by("Foreign", "x"),
		"pod":     by("ReplicaSet", "rs"),
		"secret":  by("Pod", "pod"),
		"lost":    by("ReplicaSet", "gone"),
		"loop":    by("ReplicaSet", "loop"),
	}
	deployment := key.Key{Group: "apps", Kind: "Deployment", Namespace: "ns", Name: "web"}
	rs := key.Key{Group: "apps", Kind: "ReplicaSet", Namespace: "ns", Name: "gone"}
	set := chains()
	r, role, _ := set.Find(schema.GroupResource{Resource: "pods"})

	for _, tc := range []struct {
		what    string
		by      *metav1.OwnerReference
		want    key.Key
		between []string
		err     error
	}{
		{what: "its controller is a main object", by: by("Deployment", "web"), want: deployment},
		{what: "one between", by: by("ReplicaSet", "rs"), want: deployment, between: []string{"rs"}},
		{what: "two between", by: by("Pod", "pod"), want: deployment, between: []string{"pod", "rs"}},
		{what: "three between are too many", by: by("Secret", "secret")},
		{what: "a main object without a namespace", by: by("Secret", "of-node"), want: key.Key{Kind: "Node", Name: "node-1"},
			between: []string{"of-node"}},
		{what: "nobody controls the one between", by: by("ReplicaSet", "alone")},
		{what: "a stranger controls the one between", by: by("ReplicaSet", "foreign")},
		{what: "its controller is no more", by: by("ReplicaSet", "gone"), want: rs},
		{what: "the controller of the one between is no more", by: by("Pod", "lost"), want: rs, between: []string{"lost"}},
		{what: "a circle", by: by("ReplicaSet", "loop")},
		{what: "the one between cannot be read", by: by("ReplicaSet", "unreadable"), err: errAway},
		{what: "a stranger", by: by("Foreign", "x")},
		{what: "its controller in another version", by: ref("apps/v1beta7", new(true)), want: deployment},
		{what: "a cluster-scoped kind", by: by("Node", "node-1"), want: key.Key{Kind: "Node", Name: "node-1"}},
		{what: "an owner that does not control", by: ref("apps/v1", new(false))},
		{what: "a kind of another group", by: ref("other/v1", new(true))},
		{what: "a reference that is not one", by: ref("a/b/c", new(true))},
		{what: "an owner that says nothing else", by: ref("apps/v1", nil)},
	} {
		t.Run(tc.what, func(t *testing.T) {
			obj := &metav1.ObjectMeta{Namespace: "ns", Name: "it", OwnerReferences: []metav1.OwnerReference{
				{APIVersion: "v1", Kind: "Node", Name: "bystander"}, *tc.by,
			}}
			kin, ok, err := set.KinOf(t.Context(), Subject{r, role, obj}, all)
			require.ErrorIs(t, err, tc.err)
			require.Equal(t, tc.want != key.Key{}, ok)
			require.Equal(t, tc.want, kin.Key)

			if ok {
				name := types.NamespacedName{Namespace: tc.want.Namespace, Name: tc.want.Name}
				require.Equal(t, &Owner{kin.Owner.Resource, name, types.UID(name.Name)}, kin.Owner)
			}

			var between []string
			for _, o := range kin.Between {
				between = append(between, o.Name)
			}

			require.Equal(t, tc.between, between)
		})
	}

	t.Run("a main object", func(t *testing.T) {
		r, role, _ := set.Find(schema.GroupResource{Group: "apps", Resource: "deployments"})
		kin, ok, err := set.KinOf(t.Context(), Subject{r, role, &metav1.ObjectMeta{Namespace: "ns", Name: "web"}}, nil)
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, Kin{Key: deployment}, kin)
	})

	t.Run("nobody without a namespace follows somebody in one", func(t *testing.T) {
		_, ok, err := set.KinOf(t.Context(), Subject{r, role,
			&metav1.ObjectMeta{Name: "it", OwnerReferences: []metav1.OwnerReference{*by("Deployment", "web")}}}, all)
		require.NoError(t, err)
		require.False(t, ok)
	})
}

// Which resources others may follow depends only on the ring.
func TestControls(t *testing.T) {
	for _, tc := range []struct {
		controlled    []v1alpha1.ControlledResource
		main, parents bool
	}{
		{nil, false, false},
		{[]v1alpha1.ControlledResource{{Resource: "pods"}}, true, false},
		{[]v1alpha1.ControlledResource{{Resource: "pods"}, {Resource: "secrets"}}, true, true},
	} {
		m := meta.NewDefaultRESTMapper(nil)
		for _, kind := range []string{"Node", "Pod", "Secret", "Service"} {
			m.Add(corev1.SchemeGroupVersion.WithKind(kind), meta.RESTScopeNamespace)
		}

		set := Resolve(m, v1alpha1.ClusterRingSpec{Resources: []v1alpha1.RingResource{
			{Resource: "services", ControlledResources: tc.controlled}, {Resource: "nodes"},
		}})
		for _, r := range set.Main() {
			require.Equal(t, tc.main, r.Controls, "a main object may be followed by what is listed below another one")
		}

		for _, r := range set.Controlled() {
			require.Equal(t, tc.parents, r.Controls)
		}
	}
}

// What follows an object has the key of that object, by the rule of its resource.
func TestKinOfKeyedOwners(t *testing.T) {
	set := keyed(v1alpha1.ObjectKey{Type: v1alpha1.KeyNamespace},
		v1alpha1.ObjectKey{Type: v1alpha1.KeyLabel, Label: "tenant"})
	tenant := func(name string) key.Key { return key.Key{Namespace: "tenant", Name: name} }

	for _, tc := range []struct {
		what    string
		by      *metav1.OwnerReference
		want    key.Key
		keyless bool
	}{
		{what: "a namespace", by: by("Deployment", "web"), want: key.Key{Kind: "Namespace", Name: "ns"}},
		{what: "a label", by: by("Node", "acme"), want: tenant("acme")},
		{what: "a label, through another object", by: by("Secret", "of-node"), want: tenant("node-1")},
		{what: "an owner without the label", by: by("Node", "bare"), want: key.Key{Kind: "Node", Name: "bare"},
			keyless: true},
		{what: "an owner that is gone", by: by("Node", "gone"), want: key.Key{Kind: "Node", Name: "gone"}, keyless: true},
	} {
		t.Run(tc.what, func(t *testing.T) {
			r, role, _ := set.Find(schema.GroupResource{Resource: "pods"})
			obj := &metav1.ObjectMeta{Namespace: "ns", Name: "it", OwnerReferences: []metav1.OwnerReference{*tc.by}}

			kin, ok, err := set.KinOf(t.Context(), Subject{r, role, obj}, people{"of-node": by("Node", "node-1")})
			require.NoError(t, err)
			require.True(t, ok)
			require.Equal(t, tc.want, kin.Key)
			require.Equal(t, tc.keyless, kin.Keyless)
		})
	}

	r, role, _ := set.Find(schema.GroupResource{Resource: "pods"})
	obj := &metav1.ObjectMeta{Namespace: "ns", Name: "it",
		OwnerReferences: []metav1.OwnerReference{*by("Node", "unreadable")}}
	_, _, err := set.KinOf(t.Context(), Subject{r, role, obj}, people{})
	require.ErrorIs(t, err, errAway)
}

func TestKeysRecorded(t *testing.T) {
	set := keyed(v1alpha1.ObjectKey{Type: v1alpha1.KeyNamespace}, v1alpha1.ObjectKey{Type: v1alpha1.KeyName})
	recorded := func(key *v1alpha1.ObjectKey) *v1alpha1.AssignmentStatus {
		return &v1alpha1.AssignmentStatus{Resources: []v1alpha1.AssignedResource{{Group: "apps", Resource: "deployments",
			Key: key}, {Resource: "nodes"}, {Resource: "left"}}}
	}

	require.True(t, set.KeysRecorded(nil))
	require.True(t, set.KeysRecorded(recorded(&v1alpha1.ObjectKey{Type: v1alpha1.KeyNamespace})))
	require.False(t, set.KeysRecorded(recorded(nil)))
	require.False(t, set.KeysRecorded(recorded(&v1alpha1.ObjectKey{Type: v1alpha1.KeyLabel, Label: "a"})))

	require.False(t, set.Equal(chains()), "another key is another set")
	require.Len(t, set.Keyed(), 1)
}

// keyed returns the resources of chains with keys.
func keyed(deployments, nodes v1alpha1.ObjectKey) *Set {
	spec := chainsSpec()
	spec.Resources[0].Key, spec.Resources[1].Key = &deployments, &nodes

	return Resolve(chainsMapper(), spec)
}
