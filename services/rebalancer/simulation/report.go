package simulation

import (
	"time"

	"github.com/clusterring/clusterring/services/rebalancer/engine"
)

// limits are those of the engine, with many workers.
var limits = engine.Limits{Workers: 16, Total: 1000, PerShard: 1000, DrainTimeout: 30 * time.Second, Settle: 5 * time.Second}

// limits are those of the engine. One worker and few drains at a time go together, and so do many: who of many workers gets the last
// drain is for the order in which goroutines run to say.
func (h History) limits() engine.Limits {
	l := limits
	if !h.Crowd {
		l.Workers, l.Total, l.PerShard = 1, 8, 3
	}

	return l
}
