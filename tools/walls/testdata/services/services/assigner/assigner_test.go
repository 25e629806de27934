package assigner

import (
	_ "github.com/clusterring/clusterring/services/rebalancer/plan"
	_ "github.com/clusterring/clusterring/tools/demo"
)
