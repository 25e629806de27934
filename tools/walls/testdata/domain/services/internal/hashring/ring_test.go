package hashring

import (
	_ "github.com/clusterring/clusterring/tools/lab/localplane"
)
