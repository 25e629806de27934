package move

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/rebalancer/feed"
)

// controlledBy is the controller of every object that is between others.
type controlledBy metav1.OwnerReference

func (c controlledBy) ControllerOf(context.Context, resources.Owner) (*metav1.OwnerReference, bool, error) {
	return (*metav1.OwnerReference)(&c), true, nil
}

func (controlledBy) LabelsOf(context.Context, resources.Owner) (resources.Labels, bool, error) {
	return resources.Labels{}, true, nil
}

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
	assess := func() Assessment {
		at, err := to.Assess(t.Context(),
			Lookup{Namespaces: &api{T: t}, Ancestors: controlledBy(ref("ConfigMap", ownerAtB()))}, service)
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
