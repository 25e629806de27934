package simulation

import (
	"time"

	"github.com/clusterring/clusterring/services/rebalancer/engine"
)

// limits are the limits of an engine with many workers.
var limits = engine.Limits{Workers: 16, Total: 1000, PerShard: 1000, DrainTimeout: 30 * time.Second,
	Settle: 5 * time.Second}

// limits returns the limits of the engine. Few workers have few drains at a time, and many have many: otherwise, the
// order in which goroutines run would decide which worker gets the last drain.
func (h History) limits() engine.Limits {
	l := limits
	if !h.Crowd {
		l.Workers, l.Total, l.PerShard = 1, 8, 3
	}

	return l
}
