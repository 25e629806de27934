package rebalancer

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"github.com/clusterring/clusterring/services/internal/clusterring"
	"github.com/clusterring/clusterring/services/rebalancer/engine"
	"github.com/clusterring/clusterring/services/rebalancer/feed"
)

// options are the values of the service's own flags.
type options struct {
	limits engine.Limits
	bounds feed.Bounds
	// sharder is whose rings the service works on. No flag sets it.
	sharder clusterring.Identity
}

// newOptions returns the default options.
func newOptions() *options {
	return &options{
		limits: engine.Limits{
			Workers: 16, Total: 500, PerShard: 100, DrainTimeout: time.Minute, Settle: 5 * time.Second, AuditBudget: 0.01,
		},
		bounds: feed.Bounds{PerSecond: 2000, AtOnce: 64},
	}
}

func (o *options) addFlags(flags *pflag.FlagSet) {
	l, b := &o.limits, &o.bounds

	flags.IntVar(&l.Workers, "concurrent-writes", l.Workers, "number of objects of a ring that are moved at a time")
	flags.IntVar(&b.AtOnce, "concurrent-requests", b.AtOnce,
		"number of reads and writes of single objects at a time, for all rings; rings get equal shares")
	flags.IntVar(&b.PerSecond, "objects-qps", b.PerSecond,
		"sustained requests per second for the objects of all rings; --kube-api-qps applies to everything else")
	flags.IntVar(&l.Total, "max-drains", l.Total, "number of objects of a ring that may be drained at a time")
	flags.IntVar(&l.PerShard, "max-drains-per-shard", l.PerShard,
		"number of objects of one shard that may be drained at a time")
	flags.DurationVar(&l.DrainTimeout, "drain-timeout", l.DrainTimeout,
		"time after which a drain that the shard has not acknowledged is reported as late; objects are never taken by force")
	flags.DurationVar(&l.Settle, "settle-period", l.Settle,
		"minimum time between a change of a ring and the start of the pass that verifies that all objects are in their "+
			"places")
	flags.Float64Var(&l.AuditBudget, "audit-budget", l.AuditBudget,
		"share of a core, for API server and rebalancer together, that audits of a ring may use while nothing changes; "+
			"at most one audit per minute")
}

// validate returns what is wrong with the flags, or nil.
func (o *options) validate() error {
	const most = 10_000

	l, b := o.limits, o.bounds

	for _, f := range []struct {
		flag  string
		value int
	}{
		{"concurrent-writes", l.Workers}, {"max-drains", l.Total}, {"max-drains-per-shard", l.PerShard},
		{"concurrent-requests", b.AtOnce}, {"objects-qps", b.PerSecond},
	} {
		if f.value < 1 || f.value > most {
			return fmt.Errorf("--%s must be between 1 and %d, not %d", f.flag, most, f.value)
		}
	}

	if l.DrainTimeout < time.Second {
		return fmt.Errorf("--drain-timeout must be at least 1s, not %s", l.DrainTimeout)
	}

	if l.Settle < 0 {
		return fmt.Errorf("--settle-period must not be negative, but is %s", l.Settle)
	}

	if !(l.AuditBudget > 0 && l.AuditBudget <= 1) { // nor NaN
		return fmt.Errorf("--audit-budget must be greater than 0 and at most 1, not %v", l.AuditBudget)
	}

	return nil
}
