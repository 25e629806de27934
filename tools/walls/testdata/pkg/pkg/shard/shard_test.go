package shard

import (
	_ "github.com/clusterring/clusterring/tools/localplane"
)
