// Package key promises one thing.
package key

import (
	_ "github.com/clusterring/clusterring/services/internal/celcheck"
)
