// Package ringquery promises one thing.
package ringquery

import (
	_ "github.com/clusterring/clusterring/services/internal/celcheck"
)
