package shard

import (
	_ "github.com/clusterring/clusterring/tools/lab/localplane"
)
