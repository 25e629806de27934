package rebalancer

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/leasetest"
	"github.com/clusterring/clusterring/tools/testkit/ringtest"
)

// A tenant who may create Leases takes no object and holds none back if the ring names the namespaces of its shards. Without that,
// the tenant's shards get objects of other namespaces.
func TestTenantsTakeNoObjects(t *testing.T) {
	w := newTestRing(t, func(r *v1alpha1.ClusterRing) { r.Spec.ShardNamespaces = []string{r.Name[len("ring-"):]} })
	w.Join("a", "b")

	var sites []*corev1.ConfigMap
	for i := range 30 {
		sites = append(sites, w.Main(fmt.Sprintf("site-%d", i), ""))
	}

	w.start()

	for _, s := range sites {
		w.Eventually(ringtest.Placed{Shard: w.Owner(s.Name)}, s)
	}

	tenant := w.Plane.Namespace(t)
	for _, name := range []string{"forged-0", "forged-1", "forged-2", "forged-3", "a", "b"} {
		forged := &leasetest.Shard{Client: w.Client, Ring: w.Ring.Name, Namespace: tenant, Name: name, Duration: 24 * time.Hour}
		require.NoError(t, forged.Acquire(t.Context()))
		t.Cleanup(func() { require.NoError(t, forged.Delete(context.WithoutCancel(t.Context()))) })
	}

	// The rebalancer sees the release after the Leases of the tenant.
	require.NoError(t, w.Shards["b"].Release(t.Context()))

	for _, s := range sites {
		w.Eventually(ringtest.Placed{Shard: "a"}, s)
	}

	require.NoError(t, w.Client.Get(t.Context(), client.ObjectKeyFromObject(w.Ring), w.Ring))
	w.Ring.Spec.ShardNamespaces = nil
	require.NoError(t, w.Client.Update(t.Context(), w.Ring))

	// All namespaces count: a is held twice, and the tenant gets what is new, as soon as the rebalancer has seen the change.
	for i := range 100 {
		last := w.Main(fmt.Sprintf("last-%d", i), "")
		require.Eventually(t, func() bool { return w.Placed(last).Shard != "" }, 20*time.Second, 10*time.Millisecond)

		if w.Placed(last).Shard != "a" {
			return
		}
	}

	t.Fatal("a gets what is new, although it is held twice")
}
