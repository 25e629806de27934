package rebalancer

import (
	"context"
	"fmt"

	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/clusterring/clusterring/services/internal/clusterring"
	"github.com/clusterring/clusterring/services/internal/kit"
	"github.com/clusterring/clusterring/services/internal/leases"
	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/rebalancer/engine"
	"github.com/clusterring/clusterring/services/rebalancer/feed"
	"github.com/clusterring/clusterring/services/rebalancer/rings"
)

func init() { metrics.Registry.MustRegister(engine.Collectors()...) }

// Embed adds what the service does to the manager of another program, for the ring of the given sharder alone, with the
// service's default limits.
func Embed(ctx context.Context, rt *kit.Runtime, self clusterring.Identity) error {
	o := newOptions()
	o.sharder = self

	return setup(ctx, rt, o)
}

func setup(ctx context.Context, rt *kit.Runtime, o *options) error {
	mgr := rt.Manager
	index := membership.NewIndex()

	synced, err := follow(ctx, rt, index)
	if err != nil {
		return fmt.Errorf("set up the rebalancer: %w", err)
	}

	api, err := feed.Connect(mgr.GetConfig(), mgr.GetHTTPClient(), o.bounds)
	if err != nil {
		return fmt.Errorf("set up the rebalancer: %w", err)
	}

	known, err := resources.Follow(mgr, rt.Clock, rt.Log)
	if err != nil {
		return fmt.Errorf("set up the rebalancer: %w", err)
	}

	r := rings.New(ctx, rings.Config{
		Name: name, Objects: api, Resources: known, Index: index, Limits: o.limits, Clock: rt.Clock,
		Tenure: &clusterring.Tenure{
			Sharder: o.sharder, Client: mgr.GetClient(), Live: rt.Live(), Clock: rt.Clock,
			Recorder: mgr.GetEventRecorder(name),
		},
	})

	return r.SetupWithManager(mgr, synced)
}

// follow keeps the index up to date. Beside a lease monitor, whose cache has the Leases, it reads them from there.
func follow(ctx context.Context, rt *kit.Runtime, index *membership.Index) (toolscache.DoneChecker, error) {
	if rt.Embedded() {
		return leases.Watch(ctx, rt.Manager, rt.AddReady, index)
	}

	return leases.Follow(rt.Manager, rt.AddReady, index)
}
