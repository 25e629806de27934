// Command demo does one thing.
package main

import (
	_ "github.com/clusterring/clusterring/pkg/shard"
	_ "github.com/clusterring/clusterring/proto/v1"
	_ "github.com/clusterring/clusterring/tools/lab/localplane"
)
