package assigner_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/leasetest"
)

// A tenant who may create Leases gets no object if the ring names the namespaces of its shards. Without that, the tenant gets
// objects of other namespaces.
func TestTenantsAddNoShards(t *testing.T) {
	f := newFixture(t, "tenants", "a", "b", "c")
	start(t, f.Plane)
	f.registered()

	tenant := f.Namespace(t)
	for i := range 9 {
		forged := &leasetest.Shard{Client: f.Client, Ring: f.name, Namespace: tenant, Name: fmt.Sprintf("forged-%d", i), Duration: 24 * time.Hour}
		require.NoError(t, forged.Acquire(t.Context()))
	}

	own := map[string]bool{"a": true, "b": true, "c": true}
	shard := func() string { return f.create(f.website(unique("site"))).GetLabels()[f.shardLabel()] }

	eventually(t, func() bool { return !own[shard()] }, "all namespaces count: the tenant gets an object")

	f.changeRing(func(r *v1alpha1.ClusterRing) { r.Spec.ShardNamespaces = []string{f.namespace} })
	eventually(t, func() bool {
		for range 30 {
			if !own[shard()] {
				return false
			}
		}

		return true
	}, "one namespace counts: the tenant gets nothing")

	namesake := &leasetest.Shard{Client: f.Client, Ring: f.name, Namespace: tenant, Name: "a"}
	require.NoError(t, namesake.Acquire(t.Context()))

	got := map[string]int{}
	for range 60 {
		got[shard()]++
	}

	require.Len(t, got, 3, "a namesake makes no shard unavailable")
	require.Positive(t, got["a"])
}
