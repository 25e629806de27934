package rebalancer

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/types"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/kit"
	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/internal/shardleases"
	"github.com/clusterring/clusterring/services/internal/status"
	"github.com/clusterring/clusterring/services/rebalancer/objects"
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

	var queue notifier

	recorder := mgr.GetEventRecorder(name)
	f := &fleet{
		api: api, live: mgr.GetAPIReader(),
		namespaces: namespaces{cached: mgr.GetClient(), live: mgr.GetAPIReader()},
		limits:     o.limits, clock: rt.Clock,
		ask:     known.Ask,
		changed: queue.notify,
		late: func(ring string, id objects.ID, shard string, after time.Duration) {
			obj := &v1alpha1.ClusterRing{}
			if err := mgr.GetClient().Get(ctx, types.NamespacedName{Name: ring}, obj); err == nil {
				recorder.Eventf(obj, nil, "Warning", v1alpha1.ReasonDrainsLate, "Drain",
					"shard %s has not released %s within %s", shard, id, after)
			}
		},
	}

	if err := mgr.Add(f); err != nil {
		return fmt.Errorf("set up the engines: %w", err)
	}

	r := &reconciler{
		client: mgr.GetClient(), live: mgr.GetAPIReader(), resources: known, index: index, fleet: f,
		recorder: recorder,
		status:   status.Writer{Client: mgr.GetClient(), Owner: name, Clock: rt.Clock},
		counts:   rate.NewLimiter(countsPerSecond, countsPerSecond),
	}

	return r.SetupWithManager(mgr, &queue, leases)
}
