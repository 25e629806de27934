package shards_test

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/load/internal/objects"
	"github.com/clusterring/clusterring/tools/load/internal/shards"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

const (
	patience = time.Minute
	tick     = 20 * time.Millisecond
)

func TestMain(m *testing.M) { os.Exit(localplane.Main(m, v1alpha1.AddToScheme)) }

// fleet returns a fleet in a namespace of its own, and what writes objects there.
func fleet(t *testing.T) (p *localplane.Plane, f *shards.Fleet, writer *objects.Client, namespace string) {
	t.Helper()
	p = localplane.Shared(t)
	namespace = p.Namespace(t)
	writer, err := objects.New(p.Config)
	require.NoError(t, err)
	t.Cleanup(writer.Close)

	ring := shards.Ring{Name: "r", Namespace: namespace, Main: objects.ConfigMaps.GroupResource()}

	return p, shards.NewFleet(ring, writer, p.Client, clock.RealClock{}), writer, namespace
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
	require.Equal(t, "r", l.Labels[contract.LabelClusterRing])
	require.Equal(t, joined[7], *l.Spec.HolderIdentity)
	require.GreaterOrEqual(t, *l.Spec.LeaseDurationSeconds, int32(24*60*60))

	require.NoError(t, f.Lose(t.Context(), joined[0]))
	require.Equal(t, "shardlease-controller", *lease(joined[0]).Spec.HolderIdentity)
	require.ElementsMatch(t, joined[1:], f.Held())

	more, err := f.Join(t.Context(), 1)
	require.NoError(t, err)
	require.NotContains(t, joined, more[0], "no name is used twice")

	require.NoError(t, f.Close(t.Context()), "without a ring")

	var left coordinationv1.LeaseList
	require.NoError(t, p.Client.List(t.Context(), &left, client.InNamespace(namespace)))
	require.Empty(t, left.Items)
}

// Drains are acknowledged, those that were there before and those that come: both labels go, others stay.
func TestAcknowledge(t *testing.T) {
	_, f, writer, namespace := fleet(t)
	shard, drain := contract.ShardLabel("r"), contract.DrainLabel("r")
	write := func(prefix string, n int, labels map[string]string) objects.Batch {
		batch := objects.Batch{Kind: objects.ConfigMaps, Namespace: namespace, Prefix: prefix, Count: n}
		require.NoError(t, writer.Create(t.Context(), batch))
		require.NoError(t, writer.Patch(t.Context(), batch, map[string]any{"metadata": map[string]any{"labels": labels}}))

		return batch
	}
	write("placed", 40, map[string]string{shard: "a", "other": "stays"})
	write("drained", 20, map[string]string{shard: "a", "other": "stays", drain: "true"})

	count := func(selector string) int {
		list, err := writer.List(t.Context(), objects.Selection{
			Kind: objects.ConfigMaps, Namespace: namespace, Labels: selector,
		})
		require.NoError(t, err)

		return len(list)
	}

	stop, err := f.Acknowledge(t.Context(), objects.ConfigMaps)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return count(drain) == 0 }, patience, tick)
	require.Equal(t, 40, count(shard))

	again := write("late", 60, map[string]string{shard: "a"})

	require.NoError(t, writer.Patch(t.Context(), again,
		map[string]any{"metadata": map[string]any{"labels": map[string]string{drain: "b"}}}))
	require.Eventually(t, func() bool { return count(drain) == 0 }, patience, tick)
	require.NoError(t, stop())

	require.Equal(t, 40, count(shard+"=a"))
	require.Equal(t, 60, count(shard+"=b"), "the drain label names the next shard")
	require.Equal(t, 60, count("other=stays"))
	require.Equal(t, 20, count("other=stays,!"+shard))

	require.NoError(t, writer.DeleteAll(t.Context(),
		objects.Selection{Kind: objects.ConfigMaps, Namespace: namespace, Labels: shard + "=a"}))
	require.Equal(t, 80, count(""))
	require.NoError(t, writer.Delete(t.Context(), again))
	require.Equal(t, 20, count(""))
}
