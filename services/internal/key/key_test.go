package key_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/clusterring/clusterring/services/internal/key"
)

var deployment = schema.GroupKind{Group: "apps", Kind: "Deployment"}

func TestKeyOfControlledObjectIsThatOfItsOwner(t *testing.T) {
	owner := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}}
	want := key.Key{Group: "apps", Kind: "Deployment", Namespace: "default", Name: "web"}
	require.Equal(t, want, key.OfObject(deployment, owner))
	require.Equal(t, want, key.OfOwner(deployment, "default", "web"))
}

func TestKeyOfClusterScopedObjectHasNoNamespace(t *testing.T) {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	k := key.OfObject(schema.GroupKind{Kind: "Namespace"}, namespace)
	require.Equal(t, "/Namespace//default", k.String())
}

func ExampleKey_Hash() {
	k := key.OfOwner(schema.GroupKind{Kind: "ConfigMap"}, "default", "a")
	fmt.Println(k, k.Hash())
	// Output: /ConfigMap/default/a 720116427
}

func FuzzStringIsInjective(f *testing.F) {
	f.Add("apps", "Deployment", "default", "web", "apps", "Deployment", "default", "web")
	f.Add("", "Namespace", "", "default", "", "Namespace", "default", "")
	f.Add("a", "b", "c", "d", "a", "b", "c-d", "")
	f.Fuzz(func(t *testing.T, g1, k1, ns1, n1, g2, k2, ns2, n2 string) {
		a, b := key.Key{Group: g1, Kind: k1, Namespace: ns1, Name: n1}, key.Key{Group: g2, Kind: k2, Namespace: ns2, Name: n2}
		for _, k := range []key.Key{a, b} {
			if strings.Count(k.String(), "/") != 3 {
				t.Skip("no part of a valid key contains a slash")
			}
		}

		if (a == b) != (a.String() == b.String()) {
			t.Errorf("keys %#v and %#v are written %q and %q", a, b, a, b)
		}

		if a == b && a.Hash() != b.Hash() {
			t.Errorf("%q has the hashes %d and %d", a, a.Hash(), b.Hash())
		}
	})
}

func FuzzHash(f *testing.F) {
	f.Add("apps", "Deployment", "default", "web")
	f.Add("", "", "", "")
	f.Add("\xff", "ß", "名前", strings.Repeat("x/", 1000))
	f.Fuzz(func(t *testing.T, group, kind, namespace, name string) {
		k := key.Key{Group: group, Kind: kind, Namespace: namespace, Name: name}

		h := k.Hash()
		if h >= key.Prime {
			t.Errorf("hash %d of %q is not below %d", h, k, key.Prime)
		}
		// The hash depends on the written form, wherever the parts end.
		if whole := reassemble(k.String()).Hash(); whole != h {
			t.Errorf("%q has the hash %d, its written form %d", k, h, whole)
		}
	})
}

// reassemble returns a key whose written form is s, which has at least three slashes: the rest is the name.
func reassemble(s string) key.Key {
	parts := strings.SplitN(s, "/", 4)
	return key.Key{Group: parts[0], Kind: parts[1], Namespace: parts[2], Name: parts[3]}
}
