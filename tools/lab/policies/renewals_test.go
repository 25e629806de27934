package policies_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

// TestRenewals: the expressions that allow a renewal by themselves allow nothing that the other rules of the policies refuse.
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

	for patch, message := range map[string]string{
		`{"spec":{"holderIdentity":"b"}}`:                                     "the holder of a shard's Lease must be the shard itself",
		`{"spec":{"leaseDurationSeconds":301}}`:                               "needs spec.leaseDurationSeconds from 1 to 300",
		`{"spec":{"leaseTransitions":2000000000}}`:                            "must be from 0 to 2000000000",
		`{"metadata":{"finalizers":["x.io/y"]}}`:                              "must not have finalizers",
		`{"metadata":{"annotations":{"` + contract.AnnotationPod + `":"b"}}}`: "must name the Pod that writes it",
	} {
		p.refused(patching(t, a, own, patch), message)
	}

	p.describe(map[string]string{namespaces: p.shards, "label." + ring: "example.com/shard"})
	p.refused(patching(t, a, own, renewal), "selects its objects by the default label")

	p.describe(map[string]string{namespaces: p.tenant})
	p.refused(patching(t, a, own, renewal), "may not contain shards of ring "+ring)

	elsewhere := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: p.tenant, Name: "a"}}
	require.NoError(t, p.Client.Create(t.Context(), p.lease(p.tenant, "a")))
	p.refused(patching(t, p.as(p.tenant, "default", "b"), elsewhere, renewal), "only Pod a of namespace")
}
