package move

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/resources"
)

func TestNarrow(t *testing.T) {
	many := map[string]bool{}
	for i := range 100 {
		many[fmt.Sprintf("left-%03d", i)] = false
		many[fmt.Sprintf("covered-%03d", i)] = true
	}

	except := func(names ...string) Narrowing { return Narrowing{Except: names} }
	only := func(names ...string) Narrowing { return Narrowing{Single: true, Only: names} }

	for name, tc := range map[string]struct {
		before        Narrowing
		covered, left string
		want          Narrowing
		fields        string
	}{
		"nothing is known":     {},
		"all but the system's": {Narrowing{}, "a b", "system", except("system"), "metadata.namespace!=system"},
		"one of many":          {Narrowing{}, "a", "b c", only("a"), ""},
		"none":                 {Narrowing{}, "", "b", only(), ""},
		"another one is left":  {except("b"), "a d", "b c", except("b"), "metadata.namespace!=b"},
		"one that was left":    {except("b"), "a b", "c", except("c"), "metadata.namespace!=c"},
		"one that is no more": {except("b", "x"), "a", "b", except("b", "x"),
			"metadata.namespace!=b,metadata.namespace!=x"},
		"one more that it covers": {only("a"), "a b", "c d e", only("a", "b"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			namespaces := map[string]bool{}
			for name := range strings.FieldsSeq(tc.left + " " + tc.covered) {
				namespaces[name] = strings.Contains(tc.covered, name)
			}

			got := Narrow(tc.before, namespaces)
			require.True(t, tc.want.Equal(got), "%+v", got)
			require.Equal(t, tc.fields, got.Fields())
		})
	}

	require.Len(t, Narrow(Narrowing{}, many).Except, fewLeftOut, "a selector should stay short")
}

func ringOf(spec []v1alpha1.RingResource, remembered ...v1alpha1.AssignedResource) *v1alpha1.ClusterRing {
	return &v1alpha1.ClusterRing{
		Spec:   v1alpha1.ClusterRingSpec{Resources: spec},
		Status: v1alpha1.ClusterRingStatus{Assignment: &v1alpha1.AssignmentStatus{Resources: remembered}},
	}
}

func mainly(name string, controlled ...string) v1alpha1.RingResource {
	r := v1alpha1.RingResource{Resource: name}
	for _, c := range controlled {
		r.ControlledResources = append(r.ControlledResources, v1alpha1.ControlledResource{Resource: c})
	}

	return r
}

func mains(all ...v1alpha1.RingResource) []v1alpha1.RingResource { return all }

func kept(name string, controlled ...string) v1alpha1.AssignedResource {
	return v1alpha1.AssignedResource{Resource: name, ControlledResources: mainly(name, controlled...).ControlledResources}
}

func TestScopeOf(t *testing.T) {
	deleted := ringOf([]v1alpha1.RingResource{mainly("a", "c")})
	deleted.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}

	for name, tc := range map[string]struct {
		ring    *v1alpha1.ClusterRing
		want    []v1alpha1.RingResource
		leaving []string
	}{
		"as it is": {ringOf(mains(mainly("a", "c")), kept("a", "c")), mains(mainly("a", "c")), nil},
		"deleted":  {deleted, mains(mainly("a", "c")), []string{"a", "c"}},
		"a main one leaves": {
			ringOf(mains(mainly("b")), kept("a", "c")), mains(mainly("b"), mainly("a", "c")), []string{"a", "c"},
		},
		"a child's leaves": {ringOf(mains(mainly("a")), kept("a", "c")), mains(mainly("a", "c")), []string{"c"}},
		"a child's is taken over": {
			ringOf(mains(mainly("b", "c")), kept("a", "c")), mains(mainly("b", "c"), mainly("a")), []string{"a"},
		},
		"a main one is, besides": {
			ringOf(mains(mainly("b", "a"), mainly("a")), kept("a")), mains(mainly("b", "a"), mainly("a")), nil,
		},
		"a controlled one is to be main": {ringOf(mains(mainly("c")), kept("c", "c")), mains(mainly("c")), nil},
	} {
		t.Run(name, func(t *testing.T) {
			before := tc.ring.DeepCopy()
			spec, leaves := ScopeOf(tc.ring)
			require.Equal(t, tc.want, spec.Resources)

			leaving := map[schema.GroupResource]bool{}
			for _, name := range tc.leaving {
				leaving[schema.GroupResource{Resource: name}] = true
			}

			require.Equal(t, leaving, leaves)
			require.Equal(t, before, tc.ring, "the ring should not be changed")
		})
	}
}

// away is a mapper that does not know whether one resource is served.
type away struct{ meta.RESTMapper }

func (a away) KindFor(r schema.GroupVersionResource) (schema.GroupVersionKind, error) {
	if r.Resource == "away" {
		return schema.GroupVersionKind{}, errors.New("its API server does not answer")
	}

	return a.RESTMapper.KindFor(r)
}

// A resource that cannot be looked up stays in the status, without keeping any other resource there.
func TestRemember(t *testing.T) {
	mapper := meta.NewDefaultRESTMapper(nil)
	for _, kind := range []string{"A", "B", "C"} {
		mapper.Add(schema.GroupVersionKind{Version: "v1", Kind: kind}, meta.RESTScopeNamespace)
	}

	all := func(all ...v1alpha1.AssignedResource) []v1alpha1.AssignedResource { return all }

	for name, tc := range map[string]struct {
		spec           []v1alpha1.RingResource
		recorded, want []v1alpha1.AssignedResource
	}{
		"as it is":          {mains(mainly("as", "bs")), all(kept("as", "bs")), all(kept("as", "bs"))},
		"what has left":     {mains(mainly("as")), all(kept("as", "bs"), kept("cs")), all(kept("as"))},
		"a typo":            {mains(mainly("as"), mainly("typo")), all(kept("as"), kept("cs")), all(kept("as"))},
		"is not served now": {mains(mainly("as", "away")), all(kept("as", "away")), all(kept("as", "away"))},
		"leaves, and is away": {
			mains(mainly("as")), all(kept("away", "bs"), kept("cs", "gone")), all(kept("as"), kept("away")),
		},
		"is controlled now": {mains(mainly("as", "bs")), all(kept("as"), kept("bs")), all(kept("as", "bs"))},
		"is controlled now, and a typo": {
			mains(mainly("as", "bs"), mainly("typo")), all(kept("as"), kept("bs")), all(kept("as", "bs")),
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := ringOf(tc.spec, tc.recorded...)
			spec, _ := ScopeOf(r)
			got := Remember(r, resources.Resolve(away{mapper}, spec), func(schema.GroupResource) bool { return true }, "")

			for i := range got {
				if len(got[i].ControlledResources) == 0 {
					got[i].ControlledResources = nil
				}
			}

			require.Equal(t, tc.want, got)
		})
	}
}
