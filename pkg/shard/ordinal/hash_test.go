package ordinal

import (
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// controlled returns an object, controlled by an object of the kind with the name one.
func controlled(by schema.GroupKind) *metav1.ObjectMeta {
	return &metav1.ObjectMeta{Namespace: "a", Name: "page", UID: "1", OwnerReferences: []metav1.OwnerReference{
		{APIVersion: "v1", Kind: "Other", Name: "other"},
		{APIVersion: by.Group + "/v1", Kind: by.Kind, Name: "one", UID: "2", Controller: new(true)},
	}}
}

func TestHashes(t *testing.T) {
	site, tenant := schema.GroupKind{Group: "example.com", Kind: "Site"}, schema.GroupKind{Group: "example.com", Kind: "Tenant"}
	page := schema.GroupKind{Kind: "Page"}
	one := &metav1.ObjectMeta{Namespace: "a", Name: "one", UID: "3"}

	require.Equal(t, uint64(0x4f846302988cbdbb), Key(site, one), "all versions must use the same number")

	for _, other := range []*metav1.ObjectMeta{{Namespace: "b", Name: "one"}, {Namespace: "a", Name: "two"}} {
		require.NotEqual(t, Key(site, one), Key(site, other))
	}
	require.NotEqual(t, Key(site, one), Key(page, one))
	require.NotEqual(t, Key(site, one), Key(schema.GroupKind{Kind: "Site"}, one))

	hash := ControllerKey(tenant)
	require.Equal(t, Key(site, one), hash(site, one), "nothing controls it")
	require.Equal(t, hash(site, one), hash(page, controlled(site)))
	require.Equal(t, hash(tenant, &metav1.ObjectMeta{Name: "one"}), hash(page, controlled(tenant)), "it belongs to no namespace")

	anew := controlled(site)
	anew.UID, anew.OwnerReferences[1].UID = "4", "5"
	require.Equal(t, hash(page, controlled(site)), hash(page, anew))
}

func TestShares(t *testing.T) {
	n := numbers{start: 5, replicas: 3}

	for ordinal, want := range map[int]share{4: {}, 5: {0, 3}, 7: {2, 3}, 8: {}} {
		require.Equal(t, want, n.share(ordinal), "ordinal %d", ordinal)
	}

	require.True(t, share{2, 3}.owns(302))
	require.False(t, share{2, 3}.owns(301))
	require.False(t, share{}.owns(0), "no replicas")
	require.Empty(t, numbers{}.share(0))
}
