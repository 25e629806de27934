package assigner

import (
	_ "github.com/clusterring/clusterring/services/rebalancer/move"
	_ "github.com/clusterring/clusterring/tools/demo"
)
