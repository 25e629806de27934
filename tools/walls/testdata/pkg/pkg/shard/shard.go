// Package shard promises one thing.
package shard

import (
	_ "github.com/clusterring/clusterring/proto/v1"
	_ "github.com/clusterring/clusterring/services/internal/key"
)
