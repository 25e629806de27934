// Package kit promises one thing.
package kit

import (
	_ "github.com/clusterring/clusterring/services/internal/celcheck"
)
