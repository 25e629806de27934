package move

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/services/rebalancer/work"
)

// A move determines once where an object belongs, although it waits for the API server, and although it sees the object again
// in the answer of the write. The place of a follower costs two look-ups, and that of its owner, which is read, another one.
func TestPlaceIsDeterminedOncePerMove(t *testing.T) {
	a := newAPI(t)
	owner := a.put(owners, ownerAtB(), "", false)
	require.Equal(t, work.SeenInPlace, a.move(a.seen(owner), target()).Event)
	require.Equal(t, 1, a.looked)

	a.looked = 0
	child := a.put(children, "child", "", false)
	require.Equal(t, work.SeenInPlace, a.move(a.seen(child), target()).Event)
	require.Equal(t, 2+1, a.looked)
	require.Equal(t, "b", a.stored[child].Labels[shardKey])
}
