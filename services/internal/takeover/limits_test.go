package takeover

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/services/internal/membership"
)

// A shard beyond the limit of a ring is not available, but it may have objects from the time before. It gives them up itself.
func TestShardBeyondTheLimitKeepsItsObjects(t *testing.T) {
	w := newWorld(t)
	a := w.shard()
	require.NoError(t, a.Acquire(t.Context()))

	var list coordinationv1.LeaseList
	require.NoError(t, w.plane.Client.List(t.Context(), &list, client.InNamespace(w.ns)))
	require.Len(t, list.Items, 1)

	leases := []*coordinationv1.Lease{&list.Items[0]}

	for i := range membership.MaxShards {
		older := list.Items[0].DeepCopy()
		older.Name = fmt.Sprintf("older-%d", i)
		older.Spec.HolderIdentity = &older.Name
		older.CreationTimestamp.Time = older.CreationTimestamp.Add(-time.Hour)
		leases = append(leases, older)
	}

	view := membership.Rules{Namespaces: w.from}.View(w.ring, leases, nil)
	require.False(t, view.Available("a"))
	require.Empty(t, w.guard.Observe(view), "it has not released its Lease")
	require.False(t, w.ask("a").Allowed)
	w.step(longestWait + time.Minute)
	w.guard.Observe(view)
	require.False(t, w.ask("a").Allowed)
}

// The Leases of a ring may be so large, or the API server so busy, that the answer of a read of all shards is too old when it comes.
func TestShardsAreReadOneByOneWhileTheReadOfAllIsSlow(t *testing.T) {
	w := newWorld(t)
	late := &lateReader{Reader: w.plane.Client, late: func() { w.step(trust) }}
	w.guard = New(w.ring, late, w.clock)

	names := w.many(2*few, 0)

	w.observe()

	for _, name := range names {
		require.True(t, w.ask(name).Allowed, name)
	}

	require.Equal(t, 1, late.all, "after that, each shard by itself")

	w.step(slowly)

	for _, name := range names {
		require.True(t, w.ask(name).Allowed, name)
	}

	require.Equal(t, 2, late.all, "another attempt to read all")
}
