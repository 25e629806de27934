package command

import (
	"testing"

	"github.com/stretchr/testify/require"

	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/render"
)

func TestAShardThatHasStoppedByItselfLooksLikeNoFailure(t *testing.T) {
	const dead, orphaned = pb.ShardState_SHARD_STATE_DEAD, pb.ShardState_SHARD_STATE_ORPHANED

	for _, state := range []pb.ShardState{dead, orphaned} {
		require.Equal(t, styled("released"), shardState(&pb.Shard{Name: "a", State: state}))
	}

	require.Equal(t, render.Bad.In("dead"), shardState(&pb.Shard{Name: "a", State: dead, Holder: "shardlease-controller"}))
	require.Equal(t, render.Bad.In("orphaned"), shardState(&pb.Shard{Name: "a", State: orphaned, Holder: "shardlease-controller"}))
}
