// Command example does one thing.
package main

import (
	_ "github.com/clusterring/clusterring/pkg/shard"
)
