package assigner_test

import (
	_ "github.com/clusterring/clusterring/services/assigner"
	_ "github.com/clusterring/clusterring/tools/lab/localplane"
)
