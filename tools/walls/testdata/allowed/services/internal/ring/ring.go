// Package ring promises one thing.
package ring

import (
	_ "github.com/clusterring/clusterring/services/internal/key"
)
