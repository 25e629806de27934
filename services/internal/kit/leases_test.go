package kit_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/clusterring/clusterring/services/internal/kit"
	"github.com/clusterring/clusterring/services/internal/leases"
	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/tools/testkit/leasetest"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

// TestOnlyLeasesOfShardsAreWatched: whatever else holds Leases in the cluster costs the services nothing.
func TestOnlyLeasesOfShardsAreWatched(t *testing.T) {
	p := localplane.Shared(t)
	ns, ring := p.Namespace(t), "watched"
	node := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "node"}}
	node.Spec.HolderIdentity = new("node")
	require.NoError(t, p.Client.Create(t.Context(), node))
	a := &leasetest.Shard{Client: p.Client, Ring: ring, Namespace: ns, Name: "a"}
	require.NoError(t, a.Acquire(t.Context()))

	large := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Namespace: ns, Name: "large",
		Labels: map[string]string{"alpha.sharding.timebertt.dev/clusterring": "large",
			"alpha.sharding.timebertt.dev/state": "dead", "other": "label"},
		Annotations: map[string]string{"large": strings.Repeat("x", 200_000)},
	}}
	for i := range 5000 {
		large.Labels[fmt.Sprintf("large-%d", i)] = strings.Repeat("x", 63)
	}

	large.Spec.HolderIdentity = new(strings.Repeat("x", 200_000))
	require.NoError(t, p.Client.Create(t.Context(), large))

	index := membership.NewIndex()
	cached, awaited := make(chan client.Reader, 1), make(chan []string, 1)
	s := kit.Service{Name: service, Setup: func(ctx context.Context, rt *kit.Runtime) error {
		cached <- rt.Manager.GetCache()

		synced, err := leases.Watch(ctx, rt.Manager, rt.AddReady, index)
		if err != nil {
			return err
		}

		return rt.Manager.Add(manager.RunnableFunc(func(ctx context.Context) error {
			if !toolscache.WaitFor(ctx, "", synced) {
				return ctx.Err()
			}
			awaited <- index.View(ring).AvailableShards()

			return rt.Ready()
		}))
	}}
	i := start(t, s, kubeconfig(t))
	i.waitReady(t)
	require.Equal(t, []string{"a"}, receive(t, awaited, "Leases"))
	require.Equal(t, []string{"a"}, index.View(ring).AvailableShards(), "ready means that the index knows the shards")

	b := &leasetest.Shard{Client: p.Client, Ring: ring, Namespace: ns, Name: "b"}
	require.NoError(t, b.Acquire(t.Context()))
	require.NoError(t, a.Release(t.Context()))
	require.Eventually(t, func() bool {
		available := index.View(ring).AvailableShards()
		return len(available) == 1 && available[0] == "b"
	}, soon, tick)
	require.NoError(t, a.Delete(t.Context()))
	require.Eventually(t, func() bool { return len(index.View(ring).Shards()) == 1 }, soon, tick)

	var list coordinationv1.LeaseList
	require.NoError(t, receive(t, cached, "setup").List(t.Context(), &list))

	names := map[string]bool{}
	for _, l := range list.Items {
		names[l.Namespace+"/"+l.Name] = true
		require.Contains(t, l.Labels, "alpha.sharding.timebertt.dev/clusterring")
		require.Less(t, l.Size(), 1000, "only what is used is kept")
	}
	require.True(t, names[ns+"/b"])
	require.True(t, names[ns+"/large"])
	require.False(t, names[ns+"/node"])
	require.NoError(t, i.stop(t))
}
