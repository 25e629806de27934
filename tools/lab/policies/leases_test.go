package policies_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

// TestRenewals: the expressions that allow a renewal by themselves allow nothing that the other rules of the policies
// refuse.
func TestRenewals(t *testing.T) {
	p := newPolicies(t)
	a, b := p.as(p.shards, "default", "a"), p.as(p.shards, "default", "b")
	ring, namespaces := p.ring.Name, "namespaces."+p.ring.Name

	p.refused(creating(t, b, p.lease(p.shards, "a")), "only Pod a of namespace")

	own := p.lease(p.shards, "a")
	require.NoError(t, a.Create(t.Context(), own))

	renewal := `{"spec":{"renewTime":"2027-01-01T00:00:00.000000Z"}}`
	require.NoError(t, patching(t, a, own, renewal)())
	require.NoError(t, patching(t, p.Client, own, renewal)(), "administrators may")

	p.refused(patching(t, b, own, renewal), "only Pod a of namespace")
	p.refused(patching(t, p.as(p.shards, "default", ""), own, renewal), "this token is bound to no Pod")

	p.describe(map[string]string{namespaces: p.shards, "label." + ring: "example.com/shard"})
	p.refused(patching(t, a, own, renewal), "selects its objects by the default label")

	p.describe(map[string]string{namespaces: p.tenant})
	p.refused(patching(t, a, own, renewal), "may not contain shards of ring "+ring)

	elsewhere := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: p.tenant, Name: "a"}}
	require.NoError(t, p.Client.Create(t.Context(), p.lease(p.tenant, "a")))
	p.refused(patching(t, p.as(p.tenant, "default", "b"), elsewhere, renewal), "only Pod a of namespace")
}

// TestRingsInSeveralParameters: what the policies know of many rings is in several objects, and a ring is in one of
// them.
func TestRingsInSeveralParameters(t *testing.T) {
	p := newPolicies(t)
	next, after := p.ring.Name+".next", p.ring.Name+".to"

	const second = contract.ShardsParameter + "-second"

	p.describe(map[string]string{"namespaces.a": "", "namespaces." + p.ring.Name: p.shards, "to": next})
	p.parameter(second, map[string]string{"namespaces." + next: p.tenant, "namespaces.z": "", "from": next})
	t.Cleanup(func() {
		left := &v1alpha1.PolicyParameter{}
		left.Name = second
		require.NoError(t, client.IgnoreNotFound(p.Client.Delete(context.WithoutCancel(t.Context()), left)))
	})

	ofNext := p.lease(p.shards, "a", func(l *coordinationv1.Lease) { l.Labels[contract.LabelClusterRing] = next })

	// Leases: each ring's rules hold, and a Lease that leaves one ring for another needs both.
	a := p.as(p.shards, "default", "a")
	p.refused(creating(t, p.as(p.tenant, "default", "a"), p.lease(p.tenant, "a")),
		"spec.shardNamespaces of the ring does not list it")
	p.refused(creating(t, a, ofNext), "may not contain shards of ring "+next)

	own := p.lease(p.shards, "a")
	require.NoError(t, a.Create(t.Context(), own))
	p.refused(patching(t, a, own, `{"metadata":{"labels":{"`+contract.LabelClusterRing+`":"`+next+`"}}}`),
		"may not contain shards of ring "+next)
	p.refused(patching(t, p.as(p.shards, "default", "b"), own,
		`{"metadata":{"labels":{"`+contract.LabelClusterRing+`":"none"}}}`), "only Pod a of namespace")

	// Webhooks: only of a ring that the parameter with its name in its limits contains.
	assigner := p.service("assigner")
	of := func(ring string) func() error {
		return creating(t, assigner, p.configuration(func(c configuration) {
			c.Labels[contract.LabelClusterRing], c.OwnerReferences[0].Name = ring, ring
		}))
	}

	p.registrable(assigner)

	for _, listed := range []string{"a", p.ring.Name, next, "z"} {
		require.NoError(t, of(listed)(), listed)
	}

	for _, unlisted := range []string{"0", "b", p.ring.Name + ".a", after, "zz"} {
		p.refused(of(unlisted), "contains the ring of this webhook configuration")
	}

	// While the lease monitor replaces parameters, old and new ones overlap: a ring must be in all that could contain it.
	p.parameter(second, map[string]string{"namespaces.a": "", "namespaces." + p.ring.Name: p.shards})
	p.refused(of(next), "contains the ring of this webhook configuration")
	require.NoError(t, of(p.ring.Name)())
}
