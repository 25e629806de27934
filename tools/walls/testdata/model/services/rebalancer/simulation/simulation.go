// Package simulation is a case of the tests: it imports what does not decide.
package simulation

import (
	_ "github.com/clusterring/clusterring/services/leasemonitor/shardlease"
	_ "github.com/clusterring/clusterring/services/rebalancer/engine"
)
