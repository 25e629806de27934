package cluster_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/tools/e2e/cluster"
)

func TestForwarded(t *testing.T) {
	address, found := cluster.Forwarded("Forwarding from 127.0.0.1:40123 -> 8090")
	require.True(t, found)
	require.Equal(t, "127.0.0.1:40123", address)

	for _, line := range []string{"", "Handling connection for 40123", "Forwarding from 127.0.0.1:40123"} {
		_, found := cluster.Forwarded(line)
		require.False(t, found, line)
	}
}
