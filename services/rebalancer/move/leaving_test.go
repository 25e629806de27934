package move

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/rebalancer/feed"
)

// A resource that leaves the ring takes along what follows its objects, also while it is remembered because the ring
// does not converge.
func TestWhatFollowsALeavingResourceLeaves(t *testing.T) {
	mapper := meta.NewDefaultRESTMapper(nil)
	for _, kind := range []string{"ConfigMap", "Secret", "Service"} {
		mapper.Add(corev1.SchemeGroupVersion.WithKind(kind), meta.RESTScopeNamespace)
	}

	to := target()
	to.Set = resources.Resolve(mapper, v1alpha1.ClusterRingSpec{Resources: []v1alpha1.RingResource{{
		Resource:            "configmaps",
		ControlledResources: []v1alpha1.ControlledResource{{Resource: "secrets"}, {Resource: "services"}},
	}}})

	ref := func(kind, name string) metav1.OwnerReference {
		return metav1.OwnerReference{APIVersion: "v1", Kind: kind, Name: name, UID: "1", Controller: new(true)}
	}
	of := ref("Secret", "between")
	service := feed.Object{
		ID:         feed.ID{GVR: corev1.SchemeGroupVersion.WithResource("services"), Namespace: "n", Name: "s"},
		Controller: &of, Shard: "a", Labelled: true,
	}
	between := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		UID: "1", OwnerReferences: []metav1.OwnerReference{ref("ConfigMap", ownerAtB())},
	}}
	read := func(context.Context, schema.GroupVersionResource,
		types.NamespacedName) (*metav1.PartialObjectMetadata, error) {
		return between, nil
	}
	lookup := Lookup{Namespaces: &api{T: t}, Ancestors: resources.NewBook(resources.BookOptions{
		Read: read, Size: 1, Remember: time.Hour, Clock: clock.RealClock{},
	})}
	assess := func() Assessment {
		at, err := to.Assess(t.Context(), lookup, service)
		require.NoError(t, err)

		return at
	}

	at := assess()
	require.True(t, at.Belongs)
	require.Equal(t, "b", at.Desired)

	to.Leaving[schema.GroupResource{Resource: "secrets"}] = true
	at = assess()
	require.False(t, at.Belongs)
	require.True(t, at.Owner.Belongs, "the owner stays, and what leaves does not wait for it")
	require.False(t, at.InPlace, "its label is removed")
}
