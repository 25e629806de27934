package ring

import (
	_ "github.com/clusterring/clusterring/tools/localplane"
)
