// Package kit promises one thing.
package kit

import (
	_ "github.com/clusterring/clusterring/proto/v1"
	_ "github.com/clusterring/clusterring/services/assigner"
	_ "github.com/clusterring/clusterring/tools/lab/localplane"
)
