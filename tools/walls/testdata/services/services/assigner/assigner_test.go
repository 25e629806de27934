package assigner

import (
	_ "github.com/clusterring/clusterring/services/rebalancer/takeover"
	_ "github.com/clusterring/clusterring/tools/demo"
)
