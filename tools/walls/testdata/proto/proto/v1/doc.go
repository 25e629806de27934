// Package v1 promises one thing.
package v1

import (
	_ "github.com/clusterring/clusterring/pkg/shard"
)
