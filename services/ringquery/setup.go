package ringquery

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"

	"google.golang.org/grpc"

	"github.com/clusterring/clusterring/services/internal/kit"
	"github.com/clusterring/clusterring/services/internal/leases"
	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/ringquery/api"
	"github.com/clusterring/clusterring/services/ringquery/auth"
	"github.com/clusterring/clusterring/services/ringquery/rings"
	"github.com/clusterring/clusterring/services/ringquery/transport"
)

// setup creates the server and the sources of its answers.
func setup(ctx context.Context, rt *kit.Runtime, options *options) error {
	var was atomic.Bool

	ready := func() error {
		err := rt.Ready()
		if err == nil {
			was.Store(true)
		}

		return err
	}

	// The caches stay filled, and the service answers calls while it is about to stop.
	service, err := answers(ctx, rt, func() error {
		if was.Load() {
			return nil
		}

		return ready()
	})
	if err != nil {
		return err
	}

	server := &transport.Server{
		Options:   options.transport,
		Name:      name,
		Namespace: rt.Options.Namespace,
		Register:  service.Register,
		Ready:     ready,
		Draining:  rt.Draining(),
		DrainTime: rt.Options.ShutdownGrace * 4 / 5, // the rest is for the other parts that have to stop
		Clock:     rt.Clock,
		Log:       rt.Log,
	}

	if err := guard(rt, options.access, server); err != nil {
		return err
	}

	if err := server.SetupWithManager(rt.Manager); err != nil {
		return err
	}

	rt.AddReady("certificate", server.CertificateReady)

	return nil
}

// guard adds authentication and authorization to the server.
func guard(rt *kit.Runtime, options auth.Options, server *transport.Server) error {
	if options.Mode == auth.ModeNone {
		return nil
	}

	g := &auth.Guard{
		Options: options,
		RingOf:  api.RingOf,
		Domain:  api.ErrorDomain,
		Clock:   rt.Clock,
		Log:     rt.Log,
	}
	if err := g.SetupWithManager(rt.Manager); err != nil {
		return err
	}

	server.ClientCertificates = options.ClientCAFile != ""
	server.Stream = []grpc.StreamServerInterceptor{g.Stream}

	return nil
}

// answers creates the API and lets it watch Leases and ClusterRings.
func answers(ctx context.Context, rt *kit.Runtime, ready func() error) (*api.Service, error) {
	objects, err := rings.NewObjects(rt.Manager.GetConfig(), rt.Manager.GetHTTPClient())
	if err != nil {
		return nil, err
	}

	known, err := resources.Follow(rt.Manager, rt.Clock, rt.Log)
	if err != nil {
		return nil, err
	}

	rt.AddReady("resources", func(*http.Request) error { return known.Known() })

	index, states := membership.NewIndex(), rings.NewLeases(rt.Clock)
	service := &api.Service{
		Rings: &rings.Rings{
			Reader:    rt.Manager.GetClient(),
			Index:     index,
			Resources: rings.NewResources(known),
			Leases:    states,
			Objects:   objects,
		},
		Ready: ready,
		Clock: rt.Clock,
		Log:   rt.Log,
	}

	index.Subscribe(service.RingChanged)

	if _, err := leases.Watch(ctx, rt.Manager, rt.AddReady, index); err != nil {
		return nil, err
	}

	// This also fills the cache of rings at startup. Otherwise, the first call would fill it and wait, although the service is
	// ready.
	synced, err := states.Follow(ctx, rt.Manager.GetCache(), service.RingChanged)
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
