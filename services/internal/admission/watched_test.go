package admission_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/services/internal/admission"
	"github.com/clusterring/clusterring/services/internal/membership"
)

// An object gets no shard that does not see it.
func TestShardThatDoesNotWatchTheNamespace(t *testing.T) {
	at := metav1.NowMicro()
	only := func(name, namespace string) *coordinationv1.Lease {
		return &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "shards", Name: name, Labels: map[string]string{contract.LabelClusterRing: "example"},
				Annotations: map[string]string{contract.AnnotationNamespaces: contract.NamespacesValue([]string{namespace}, at.Time)},
			},
			Spec: coordinationv1.LeaseSpec{HolderIdentity: new(name), RenewTime: &at},
		}
	}
	facts := state("a", "b").Facts()
	facts.View = membership.NewView(facts.Name, []*coordinationv1.Lease{only("a", "default"), only("b", "other")}, nil)
	r := admission.NewRing(facts)

	for i := range 20 {
		site := create(websites, &admission.Object{Namespace: "default", Name: string(rune('a' + i))})
		require.Equal(t, "a", admission.Decide(t.Context(), r, &site, people{}).Shard)
	}

	site := create(websites, &admission.Object{Namespace: "third", Name: "a"})
	answer := admission.Decide(t.Context(), r, &site, people{})
	require.Equal(t, admission.NoShard, answer.Outcome)
	require.Empty(t, answer.Shard)
	require.Contains(t, answer.Warning, "no available shard that watches namespace third")
}

// A shard gets no object that it does not see, even if it creates the object.
func TestChildBeyondTheNamespacesOfTheShard(t *testing.T) {
	at := metav1.NowMicro()
	l := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "a", Labels: map[string]string{contract.LabelClusterRing: ring},
			Annotations: map[string]string{contract.AnnotationNamespaces: contract.NamespacesValue([]string{"default"}, at.Time)},
		},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: new("a"), RenewTime: &at},
	}
	facts := moving("a").Facts()
	facts.View = membership.NewView(ring, []*coordinationv1.Lease{l}, nil)
	facts.AssignedFingerprint = ""
	r := admission.NewRing(facts)

	for namespace, want := range map[string]admission.Outcome{"default": admission.ByShard, "other": admission.Moving} {
		object := child(nil)
		object.Namespace = namespace
		req := by("a", create(configmaps, object))
		require.Equal(t, want, admission.Decide(t.Context(), r, &req, people{}).Outcome, namespace)
	}
}
