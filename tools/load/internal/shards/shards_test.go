package shards_test

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/lab/localplane"
	"github.com/clusterring/clusterring/tools/load/internal/objects"
	"github.com/clusterring/clusterring/tools/load/internal/shards"
)

const (
	patience = time.Minute
	tick     = 20 * time.Millisecond
)

func TestMain(m *testing.M) { os.Exit(localplane.Main(m)) }

// fleet returns a fleet in a namespace of its own, and what writes objects there.
func fleet(t *testing.T) (p *localplane.Plane, f *shards.Fleet, writer *objects.Client, namespace string) {
	t.Helper()
	p = localplane.Shared(t)
	namespace = p.Namespace(t)
	writer, err := objects.New(p.Config, 2)
	require.NoError(t, err)
	t.Cleanup(writer.Close)

	ring := shards.Ring{Name: "r", Namespace: namespace, Main: objects.ConfigMaps.GroupResource()}

	return p, shards.NewFleet(shards.Options{Objects: writer, Client: p.Client, Ring: ring, Concurrency: 8, Now: time.Now}), writer, namespace
}

func TestFleet(t *testing.T) {
	p, f, _, namespace := fleet(t)
	lease := func(name string) *coordinationv1.Lease {
		l := &coordinationv1.Lease{}
		require.NoError(t, p.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, l))

		return l
	}

	joined, err := f.Join(t.Context(), 20)
	require.NoError(t, err)
	require.Len(t, joined, 20)
	require.ElementsMatch(t, joined, f.Held())
	l := lease(joined[7])
	require.Equal(t, "r", l.Labels[v1alpha1.LabelClusterRing])
	require.Equal(t, joined[7], *l.Spec.HolderIdentity)
	require.GreaterOrEqual(t, *l.Spec.LeaseDurationSeconds, int32(24*60*60))

	require.NoError(t, f.Release(t.Context(), joined[0]))
	require.Empty(t, *lease(joined[0]).Spec.HolderIdentity)
	require.NoError(t, f.Lose(t.Context(), joined[1]))
	require.Equal(t, "shardlease-controller", *lease(joined[1]).Spec.HolderIdentity)
	require.ElementsMatch(t, joined[2:], f.Held())

	more, err := f.Join(t.Context(), 1)
	require.NoError(t, err)
	require.NotContains(t, joined, more[0], "no name is used twice")

	require.NoError(t, f.RemoveLeases(t.Context()))
	require.Empty(t, f.Held())

	var left coordinationv1.LeaseList
	require.NoError(t, p.Client.List(t.Context(), &left, client.InNamespace(namespace)))
	require.Empty(t, left.Items)
}

// Drains are acknowledged, those that were there before and those that come: both labels go, others stay.
func TestAcknowledge(t *testing.T) {
	_, f, writer, namespace := fleet(t)
	shard, drain := v1alpha1.ShardLabel("r"), v1alpha1.DrainLabel("r")
	batch := objects.Batch{
		Kind: objects.ConfigMaps, Namespace: namespace, Prefix: "o", Count: 60, Concurrency: 8,
		Labels: func(i int) map[string]string {
			labels := map[string]string{shard: "a", "other": "stays"}
			if i < 20 {
				labels[drain] = "true"
			}

			return labels
		},
	}
	require.NoError(t, writer.Create(t.Context(), batch))

	drains := f.Acknowledge(t.Context(), 4, objects.ConfigMaps)
	require.Eventually(t, func() bool { return drains.Acknowledged() == 20 }, patience, tick)

	again := batch
	again.Prefix, again.Labels = "late", nil
	require.NoError(t, writer.Create(t.Context(), again))
	require.NoError(t, writer.Patch(t.Context(), again, func(int) []byte { return []byte(`{"metadata":{"labels":{"` + drain + `":"true"}}}`) }))
	require.Eventually(t, func() bool { return drains.Acknowledged() == 80 }, patience, tick)
	require.NoError(t, drains.Stop())
	require.Zero(t, drains.Conflicts())

	count := func(selector string) int {
		n, err := writer.Count(t.Context(), objects.Selection{Kind: objects.ConfigMaps, Namespace: namespace, Labels: selector})
		require.NoError(t, err)

		return n
	}
	require.Zero(t, count(drain))
	require.Equal(t, 40, count(shard))
	require.Equal(t, 60, count("other=stays"))
	byShard, err := writer.CountBy(t.Context(), objects.Selection{Kind: objects.ConfigMaps, Namespace: namespace, Labels: "other"}, shard)
	require.NoError(t, err)
	require.Equal(t, map[string]int{"a": 40, "": 20}, byShard)

	require.NoError(t, writer.DeleteAll(t.Context(), objects.Selection{Kind: objects.ConfigMaps, Namespace: namespace, Labels: shard}, 8))
	require.Equal(t, 80, count("!"+shard))
	require.NoError(t, writer.Delete(t.Context(), again))
	require.Equal(t, 20, count(""))
}

// What cannot be watched ends with an error that says so.
func TestAcknowledgeOfNothing(t *testing.T) {
	_, f, _, _ := fleet(t)
	unknown := objects.Websites
	unknown.Resource = "unknown"
	drains := f.Acknowledge(t.Context(), 1, unknown)
	require.Eventually(t, func() bool { return drains.Err() != nil }, patience, tick)
	require.ErrorContains(t, drains.Stop(), "list draining unknown")
}
