package registration

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheMessageContainsWhatToOpen(t *testing.T) {
	require.Equal(t, "calls of API servers do not arrive at the assigner: context deadline exceeded. Allow API servers to connect to port 443 of Service "+
		"sharding-system/assigner, which is TCP port 9443 of its Pods, in the firewall of the control plane, NetworkPolicies, and the cluster network",
		inService.unreached("context deadline exceeded"))
}
