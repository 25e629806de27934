package ringquery

import (
	"context"
	"errors"
	"net/http"

	"github.com/clusterring/clusterring/services/internal/kit"
	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/internal/shardleases"
	"github.com/clusterring/clusterring/services/ringquery/api"
	"github.com/clusterring/clusterring/services/ringquery/metadata"
	"github.com/clusterring/clusterring/services/ringquery/query"
)

// answers makes the service that answers, and lets it follow Leases and ClusterRings.
func answers(ctx context.Context, rt *kit.Runtime, ready func() error) (*api.Service, error) {
	objects, err := metadata.NewReader(rt.Manager.GetConfig(), rt.Manager.GetHTTPClient())
	if err != nil {
		return nil, err
	}

	known, err := resources.Follow(rt.Manager, rt.Clock, rt.Log)
	if err != nil {
		return nil, err
	}

	rt.AddReady("resources", func(*http.Request) error { return known.Known() })

	index, leases := membership.NewIndex(), query.NewLeases(rt.Clock)
	service := &api.Service{
		Answers: &query.Answerer{
			Reader:    rt.Manager.GetClient(),
			Index:     index,
			Resources: query.NewResources(known),
			Leases:    leases,
			Objects:   objects,
		},
		Ready: ready,
		Clock: rt.Clock,
		Log:   rt.Log,
	}

	index.Subscribe(service.RingChanged)

	if _, err := shardleases.Watch(ctx, rt, index); err != nil {
		return nil, err
	}

	// This also makes the cache read all rings at the start: one that is first asked for them by a call would make that
	// call wait, and readiness a lie.
	synced, err := leases.Follow(ctx, rt.Manager.GetCache(), service.RingChanged)
	if err != nil {
		return nil, err
	}

	rt.AddReady("shard-states", func(*http.Request) error {
		if !synced() {
			return errors.New("the states of shards and the ClusterRings have not been read yet")
		}

		return nil
	})

	return service, nil
}
