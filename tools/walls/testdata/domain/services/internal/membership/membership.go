// Package membership promises one thing.
package membership

import (
	_ "github.com/clusterring/clusterring/services/internal/status"
)
