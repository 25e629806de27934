package rebalancer

import (
	"context"
	"fmt"

	"github.com/clusterring/clusterring/services/internal/kit"
	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/internal/shardleases"
	"github.com/clusterring/clusterring/services/rebalancer/objects"
	"github.com/clusterring/clusterring/services/rebalancer/rings"
)

func setup(ctx context.Context, rt *kit.Runtime, o *options) error {
	mgr := rt.Manager
	index := membership.NewIndex()

	leases, err := shardleases.Follow(rt, index)
	if err != nil {
		return fmt.Errorf("set up the rebalancer: %w", err)
	}

	api, err := objects.Connect(mgr.GetConfig(), mgr.GetHTTPClient(), o.bounds)
	if err != nil {
		return fmt.Errorf("set up the rebalancer: %w", err)
	}

	known, err := resources.Follow(mgr, rt.Clock, rt.Log)
	if err != nil {
		return fmt.Errorf("set up the rebalancer: %w", err)
	}

	r := rings.New(ctx, rings.Config{
		Name:   name,
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Objects: api,
		Resources: known, Index: index,
		Limits: o.limits, Clock: rt.Clock,
		Recorder: mgr.GetEventRecorder(name),
	})

	return r.SetupWithManager(mgr, leases)
}
