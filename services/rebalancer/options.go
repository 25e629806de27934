package rebalancer

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"github.com/clusterring/clusterring/services/rebalancer/engine"
	"github.com/clusterring/clusterring/services/rebalancer/objects"
)

// options are the values of the service's own flags.
type options struct {
	limits engine.Limits
	bounds objects.Bounds
}

// newOptions returns the defaults.
func newOptions() *options {
	return &options{
		limits: engine.Limits{
			Workers: 16, Total: 500, PerShard: 100, DrainTimeout: time.Minute, Settle: 5 * time.Second, AuditBudget: 0.01,
		},
		bounds: objects.Bounds{PerSecond: 2000, AtOnce: 64},
	}
}

func (o *options) addFlags(flags *pflag.FlagSet) {
	l, b := &o.limits, &o.bounds

	flags.IntVar(&l.Workers, "concurrent-writes", l.Workers, "Number of objects of a ring that are moved at a time")
	flags.IntVar(&b.AtOnce, "concurrent-requests", b.AtOnce, "Number of reads and writes of single objects at a time, of all rings; rings get equal shares")
	flags.IntVar(&b.PerSecond, "objects-qps", b.PerSecond, "Sustained requests per second for the objects of all rings; --kube-api-qps is for everything else")
	flags.IntVar(&l.Total, "max-drains", l.Total, "Number of objects of a ring that may be drained at a time")
	flags.IntVar(&l.PerShard, "max-drains-per-shard", l.PerShard, "Number of objects of one shard that may be drained at a time")
	flags.DurationVar(&l.DrainTimeout, "drain-timeout", l.DrainTimeout,
		"Time that a shard may take to acknowledge a drain until it is reported as late; nothing is ever forced")
	flags.DurationVar(&l.Settle, "settle-period", l.Settle,
		"Time after a change of a ring until the pass over its objects may begin that shows all of them in their place")
	flags.Float64Var(&l.AuditBudget, "audit-budget", l.AuditBudget,
		"Part of a core, of API server and rebalancer together, that may go into looking at all objects of a ring although nothing has changed; an audit comes every minute at most")
}

// validate returns what is wrong with the flags, or nil.
func (o *options) validate() error {
	const most = 10_000

	l, b := o.limits, o.bounds

	for _, f := range []struct {
		flag  string
		value int
	}{{"concurrent-writes", l.Workers}, {"max-drains", l.Total}, {"max-drains-per-shard", l.PerShard}, {"concurrent-requests", b.AtOnce}, {"objects-qps", b.PerSecond}} {
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
