// Package assigner promises one thing.
package assigner

import (
	_ "github.com/clusterring/clusterring/services/assignerx"
	_ "github.com/clusterring/clusterring/services/rebalancer/move"
	_ "github.com/clusterring/clusterring/tools/lab/localplane"
)
