// Package model is a case of the tests: it imports what does.
package model

import (
	_ "github.com/clusterring/clusterring/services/assigner/webhook"
	_ "github.com/clusterring/clusterring/services/internal/kit"
	_ "github.com/clusterring/clusterring/services/rebalancer/engine"
	_ "github.com/clusterring/clusterring/tools/lab/localplane"
)
