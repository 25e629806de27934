package placement_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/rebalancer/feed"
	"github.com/clusterring/clusterring/services/rebalancer/placement"
)

const ring = "after"

// world has a namespace "out" that the ring does not cover, and knows no object between others.
type world struct{}

func (world) Selects(_ context.Context, namespace string, _ labels.Selector) (bool, error) {
	return namespace != "out", nil
}

func (world) ControllerOf(context.Context, resources.Owner) (*metav1.OwnerReference, bool, error) {
	return nil, false, nil
}

func (world) LabelsOf(_ context.Context, of resources.Owner) (resources.Labels, bool, error) {
	return resources.Labels{All: map[string]string{"k": "v"}, Selected: of.Name == "selected"}, of.Name != "gone", nil
}

// TestAssessmentAfterAWrite: what an assessment says about the object after a write is what another one would say.
func TestAssessmentAfterAWrite(t *testing.T) {
	mapper := meta.NewDefaultRESTMapper(nil)
	for _, kind := range []string{"ConfigMap", "Secret", "Pod"} {
		mapper.Add(corev1.SchemeGroupVersion.WithKind(kind), meta.RESTScopeNamespace)
	}

	set := resources.Resolve(mapper, v1alpha1.ClusterRingSpec{
		Resources: []v1alpha1.RingResource{{
			Resource: "configmaps", Key: &v1alpha1.ObjectKey{Type: v1alpha1.KeyLabel, Label: "k"},
			ControlledResources: []v1alpha1.ControlledResource{{Resource: "secrets"}, {Resource: "pods"}},
		}},
		ObjectSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"selected": "true"}},
	})
	holder := "a"
	target := &placement.Target{Set: set, Selector: labels.Everything(), View: membership.NewView(ring, []*coordinationv1.Lease{{
		ObjectMeta: metav1.ObjectMeta{Name: holder, Labels: map[string]string{contract.LabelClusterRing: ring}},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder},
	}}, nil)}
	lookup := placement.Lookup{Namespaces: world{}, Ancestors: world{}}
	client := feed.NewClient(nil, contract.LabelKeysOf(ring, ""))
	client.Reads(set)

	object := func(resource, namespace, owner string, has map[string]string) feed.Object {
		m := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "it", UID: "it", Labels: has}}

		if owner != "" {
			kind := map[bool]string{true: "Secret", false: "ConfigMap"}[resource == "pods"]
			m.OwnerReferences = []metav1.OwnerReference{
				{APIVersion: "v1", Kind: kind, Name: owner, UID: types.UID(owner), Controller: new(true)},
			}
		}

		return client.Object(corev1.SchemeGroupVersion.WithResource(resource), m)
	}
	labelled := func(shard, drain string, more ...string) map[string]string {
		all := map[string]string{"k": "v", "selected": "true"}

		for key, value := range map[string]string{contract.ShardLabel(ring): shard, contract.DrainLabel(ring): drain} {
			if value != "" {
				all[key] = value
			}
		}

		for _, key := range more {
			all[key] = "changed"
		}

		return all
	}
	states := []map[string]string{labelled("", ""), labelled("a", ""), labelled("a", "true"), labelled("b", ""), labelled("", "true")}

	for _, of := range [][3]string{
		{"configmaps", "in", ""}, {"configmaps", "out", ""}, {"secrets", "in", "selected"}, {"secrets", "in", "left"},
		{"secrets", "in", "gone"}, {"secrets", "out", "selected"}, {"pods", "in", "gone"}, {"secrets", "in", ""},
	} {
		for i, before := range states {
			for j, after := range states {
				t.Run(fmt.Sprint(of, i, j), func(t *testing.T) {
					was, now := object(of[0], of[1], of[2], before), object(of[0], of[1], of[2], after)

					at, err := target.Assess(t.Context(), lookup, was)
					require.NoError(t, err)
					want, err := target.Assess(t.Context(), lookup, now)
					require.NoError(t, err)

					got, ok := at.After(was, now)
					require.True(t, ok)
					require.Equal(t, [...]any{want.Belongs, want.OwnerBelongs, want.Desired, want.InPlace, want.Keyless, want.Above, want.Owner},
						[...]any{got.Belongs, got.OwnerBelongs, got.Desired, got.InPlace, got.Keyless, got.Above, got.Owner})
				})
			}
		}
	}

	was := object("configmaps", "in", "", labelled("", ""))
	at, err := target.Assess(t.Context(), lookup, was)
	require.NoError(t, err)

	for what, now := range map[string]feed.Object{
		"another key":        object("configmaps", "in", "", labelled("a", "", "k")),
		"not selected":       object("configmaps", "in", "", labelled("a", "", "selected")),
		"another controller": object("configmaps", "in", "selected", labelled("a", "")),
	} {
		_, ok := at.After(was, now)
		require.False(t, ok, what)
	}
}
