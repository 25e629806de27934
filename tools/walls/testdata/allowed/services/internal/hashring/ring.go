// Package hashring promises one thing.
package hashring

import (
	_ "github.com/clusterring/clusterring/services/internal/key"
)
