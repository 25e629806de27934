package api

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/ringquery/rings"
)

// TestPageIsSorted verifies the order by namespace, then name. The API server sorts by the joined names: "a-b/x" comes before "a/x".
func TestPageIsSorted(t *testing.T) {
	r := rings.Ring{
		ClusterRing: &v1alpha1.ClusterRing{ObjectMeta: metav1.ObjectMeta{Name: "ring"}},
		View:        membership.NewView("ring", nil, nil),
		Resources:   &resources.Set{},
	}
	m := member{
		Resource: resources.Resource{Kind: corev1.SchemeGroupVersion.WithKind("ConfigMap"), Namespaced: true},
		role:     resources.Main,
		spaces:   &namespaces{ring: r, known: map[string]bool{"a": true, "a-b": true}},
	}

	all, err := m.assignmentsOf(t.Context(), []metav1.PartialObjectMetadata{
		{ObjectMeta: metav1.ObjectMeta{Namespace: "a-b", Name: "x"}},
		{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "y"}},
		{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "x"}},
		{ObjectMeta: metav1.ObjectMeta{Namespace: "not-covered", Name: "x"}},
	})
	require.NoError(t, err)

	var names []string

	for _, a := range all {
		require.Equal(t, rings.Unassigned, a.GetState())
		names = append(names, a.GetNamespace()+"/"+a.GetName())
	}
	require.Equal(t, []string{"a/x", "a/y", "a-b/x"}, names)
}
