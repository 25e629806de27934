package rebalancer

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/ringtest"
)

// joinElsewhere lets a shard join that does not watch the namespace of the objects.
func (w *testRing) joinElsewhere(name string) {
	w.Shards[name] = w.Shard(name, 0)
	w.Shards[name].Namespaces = []string{"elsewhere"}
	w.Join(name)
}

// A shard that does not watch the namespace would never acknowledge a drain.
func TestShardsGetOnlyObjectsThatTheyWatch(t *testing.T) {
	w := newTestRing(t)
	w.joinElsewhere("a")

	owner, found := w.Main("owner", "a"), w.Main("found", "")
	child := w.Child(owner, "a")

	w.start()
	require.Contains(t, w.Assigned(v1alpha1.ReasonNamespacesNotWatched).Message,
		"nobody works on objects in the namespaces "+w.Namespace+", which the ring covers and no shard watches: shards that watch only the namespaces elsewhere: a; ")
	w.AtRest()
	require.Equal(t, ringtest.Placed{}, w.Placed(found), "it gets no shard that does not see it")
	require.Equal(t, ringtest.Placed{Shard: "a"}, w.Placed(owner), "there is nobody to give it to")

	w.Join("b")
	w.Eventually(ringtest.Placed{Shard: "b"}, owner, found, child)
	w.AtRest()
	w.Assigned(v1alpha1.ReasonAllAssigned)
}

func TestDeletedRingWhoseObjectsNobodyWatches(t *testing.T) {
	w := newTestRing(t)
	w.joinElsewhere("a")

	owner := w.Main("owner", "a")
	child := w.Child(owner, "a")

	w.start()
	w.Assigned(v1alpha1.ReasonNamespacesNotWatched)
	require.NoError(t, w.Client.Delete(t.Context(), w.Ring))
	require.Eventually(t, func() bool {
		return apierrors.IsNotFound(w.Client.Get(t.Context(), client.ObjectKeyFromObject(w.Ring), &v1alpha1.ClusterRing{}))
	}, 30*time.Second, 20*time.Millisecond, "nobody has to acknowledge anything")
	require.Equal(t, ringtest.Placed{}, w.Placed(owner))
	require.Equal(t, ringtest.Placed{}, w.Placed(child))
}
