package placement

import (
	"errors"
	"fmt"
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

	for name, tc := range map[string]struct {
		before  Narrowing
		covered map[string]bool
		want    Narrowing
		fields  string
	}{
		"nothing is known": {want: Narrowing{}},
		"all but the system's": {covered: map[string]bool{"a": true, "b": true, "kube-system": false},
			want: Narrowing{Except: []string{"kube-system"}}, fields: "metadata.namespace!=kube-system"},
		"one of many": {covered: map[string]bool{"a": true, "b": false, "c": false},
			want: Narrowing{Single: true, Only: []string{"a"}}},
		"none": {covered: map[string]bool{"b": false}, want: Narrowing{Single: true}},
		"another one is left": {before: Narrowing{Except: []string{"b"}},
			covered: map[string]bool{"a": true, "d": true, "b": false,
				"c": false}, want: Narrowing{Except: []string{"b"}}, fields: "metadata.namespace!=b"},
		"one that was left": {before: Narrowing{Except: []string{"b"}},
			covered: map[string]bool{"a": true, "b": true,
				"c": false}, want: Narrowing{Except: []string{"c"}}, fields: "metadata.namespace!=c"},
		"one that is no more": {before: Narrowing{Except: []string{"b", "x"}},
			covered: map[string]bool{"a": true, "b": false}, want: Narrowing{Except: []string{"b",
				"x"}}, fields: "metadata.namespace!=b,metadata.namespace!=x"},
		"one more that it covers": {before: Narrowing{Single: true, Only: []string{"a"}},
			covered: map[string]bool{"a": true, "b": true, "c": false, "d": false, "e": false}, want: Narrowing{Single: true,
				Only: []string{"a", "b"}}},
	} {
		t.Run(name, func(t *testing.T) {
			got := Narrow(tc.before, tc.covered)
			require.True(t, tc.want.Equal(got), "%+v", got)
			require.Equal(t, tc.fields, got.Fields())
		})
	}

	require.Len(t, Narrow(Narrowing{}, many).Except, fewLeftOut, "a selector should stay short")
}

func ring(spec []v1alpha1.RingResource, remembered ...v1alpha1.AssignedResource) *v1alpha1.ClusterRing {
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

func kept(name string, controlled ...string) v1alpha1.AssignedResource {
	return v1alpha1.AssignedResource{Resource: name, ControlledResources: mainly(name, controlled...).ControlledResources}
}

func TestScopeOf(t *testing.T) {
	deleted := ring([]v1alpha1.RingResource{mainly("a", "c")})
	deleted.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}

	for name, tc := range map[string]struct {
		ring    *v1alpha1.ClusterRing
		want    []v1alpha1.RingResource
		leaving []string
	}{
		"as it is": {ring: ring([]v1alpha1.RingResource{mainly("a", "c")}, kept("a", "c")),
			want: []v1alpha1.RingResource{mainly("a", "c")}},
		"deleted": {ring: deleted, want: []v1alpha1.RingResource{mainly("a", "c")}, leaving: []string{"a", "c"}},
		"a main one leaves": {ring: ring([]v1alpha1.RingResource{mainly("b")}, kept("a", "c")),
			want: []v1alpha1.RingResource{mainly("b"), mainly("a", "c")}, leaving: []string{"a", "c"}},
		"a child's leaves": {ring: ring([]v1alpha1.RingResource{mainly("a")}, kept("a", "c")),
			want: []v1alpha1.RingResource{mainly("a", "c")}, leaving: []string{"c"}},
		"a child's is taken over": {
			ring: ring([]v1alpha1.RingResource{mainly("b", "c")}, kept("a", "c")),
			want: []v1alpha1.RingResource{mainly("b", "c"), mainly("a")}, leaving: []string{"a"},
		},
		"a main one is, besides": {
			ring: ring([]v1alpha1.RingResource{mainly("b", "a"), mainly("a")}, kept("a")),
			want: []v1alpha1.RingResource{mainly("b", "a"), mainly("a")},
		},
		"a controlled one is to be main": {ring: ring([]v1alpha1.RingResource{mainly("c")}, kept("c", "c")),
			want: []v1alpha1.RingResource{mainly("c")}},
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

	for name, tc := range map[string]struct {
		spec           []v1alpha1.RingResource
		recorded, want []v1alpha1.AssignedResource
	}{
		"as it is": {spec: []v1alpha1.RingResource{mainly("as", "bs")},
			recorded: []v1alpha1.AssignedResource{kept("as", "bs")}, want: []v1alpha1.AssignedResource{kept("as", "bs")}},
		"what has left": {spec: []v1alpha1.RingResource{mainly("as")},
			recorded: []v1alpha1.AssignedResource{kept("as", "bs"), kept("cs")}, want: []v1alpha1.AssignedResource{kept("as")}},
		"a typo": {spec: []v1alpha1.RingResource{mainly("as"), mainly("typo")},
			recorded: []v1alpha1.AssignedResource{kept("as"), kept("cs")}, want: []v1alpha1.AssignedResource{kept("as")}},
		"is not served now": {spec: []v1alpha1.RingResource{mainly("as", "away")},
			recorded: []v1alpha1.AssignedResource{kept("as", "away")}, want: []v1alpha1.AssignedResource{kept("as", "away")}},
		"leaves, and is away": {spec: []v1alpha1.RingResource{mainly("as")},
			recorded: []v1alpha1.AssignedResource{kept("away", "bs"),
				kept("cs", "gone")}, want: []v1alpha1.AssignedResource{kept("as"), kept("away")}},
		"is controlled now": {spec: []v1alpha1.RingResource{mainly("as", "bs")},
			recorded: []v1alpha1.AssignedResource{kept("as"), kept("bs")}, want: []v1alpha1.AssignedResource{kept("as", "bs")}},
		"is controlled now, and a typo": {spec: []v1alpha1.RingResource{mainly("as", "bs"), mainly("typo")},
			recorded: []v1alpha1.AssignedResource{kept("as"), kept("bs")}, want: []v1alpha1.AssignedResource{kept("as", "bs")}},
	} {
		t.Run(name, func(t *testing.T) {
			r := ring(tc.spec, tc.recorded...)
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
