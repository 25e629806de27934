package store_test

import (
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/load/internal/objects"
	"github.com/clusterring/clusterring/tools/load/internal/store"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

func TestMain(m *testing.M) { os.Exit(localplane.Main(m, v1alpha1.AddToScheme)) }

// What is put into the storage is, to everybody who asks the API server, as if that had created it.
func TestObjectsComeAndGoBehindTheAPIServersBack(t *testing.T) {
	p := localplane.Shared(t)
	namespace, other := p.Namespace(t), p.Namespace(t)
	writer, err := objects.New(p.Config)
	require.NoError(t, err)
	t.Cleanup(writer.Close)
	s, err := store.Open(p.Etcd(), writer)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })

	batch := objects.Batch{
		Kind: objects.ConfigMaps, Namespace: namespace, Prefix: "o", Count: 4000,
		Labels: func(i int) map[string]string { return map[string]string{"parity": strconv.Itoa(i % 2)} },
	}
	require.NoError(t, s.Create(t.Context(), batch, 0))

	all := objects.Selection{Kind: objects.ConfigMaps, Namespace: namespace}
	made, err := writer.List(t.Context(), all)
	require.NoError(t, err)

	counts := map[string]int{}
	for i := range made {
		counts[made[i].Labels["parity"]]++
	}
	require.Equal(t, map[string]int{"0": 2000, "1": 2000}, counts)

	batch.Count = 4001
	require.NoError(t, s.Create(t.Context(), batch, 4000), "one more, that the API server makes")

	var list corev1.ConfigMapList
	require.NoError(t, p.Client.List(t.Context(), &list, client.InNamespace(namespace)))

	uids := map[string]bool{}

	for i := range list.Items {
		o := &list.Items[i]
		uids[string(o.UID)] = true
		require.Equal(t, list.Items[0].Data, o.Data)
		require.NotEmpty(t, o.ManagedFields)
		require.False(t, o.CreationTimestamp.IsZero())
	}
	require.Len(t, uids, 4001)

	// The API server writes them as it does its own.
	last := &list.Items[4000]
	last.Data = map[string]string{"changed": "yes"}
	require.NoError(t, p.Client.Update(t.Context(), last))

	batch.Namespace, batch.Count = other, 3
	require.NoError(t, s.Create(t.Context(), batch, 0))
	require.NoError(t, s.Clear(t.Context(), namespace))
	left, err := writer.List(t.Context(), all)
	require.NoError(t, err)
	require.Empty(t, left)
	left, err = writer.List(t.Context(), objects.Selection{Kind: objects.ConfigMaps, Namespace: other})
	require.NoError(t, err)
	require.Len(t, left, 3)
}
