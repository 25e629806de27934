package simulation

import (
	"time"

	"github.com/clusterring/clusterring/services/rebalancer/engine"
)

// limits are those of the engine.
var limits = engine.Limits{Workers: 16, Total: 8, PerShard: 3, DrainTimeout: 30 * time.Second, Settle: 5 * time.Second}

// hasConverged reports whether the engine says that everything is in its place.
func hasConverged(r engine.Report) bool { return r.Converged }
