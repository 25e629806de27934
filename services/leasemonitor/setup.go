package leasemonitor

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/kit"
	"github.com/clusterring/clusterring/services/internal/lease"
	"github.com/clusterring/clusterring/services/internal/sharder"
	"github.com/clusterring/clusterring/services/internal/status"
	"github.com/clusterring/clusterring/services/leasemonitor/parameters"
	"github.com/clusterring/clusterring/services/leasemonitor/pods"
	"github.com/clusterring/clusterring/services/leasemonitor/ringstatus"
	"github.com/clusterring/clusterring/services/leasemonitor/shardlease"
)

// Embed adds what the service does to the manager of another program, for the ring of the given sharder alone. Admission policies are none of its
// concern: they need rights beyond the ring's.
func Embed(ctx context.Context, rt *kit.Runtime, self sharder.Identity) error {
	return setup(ctx, rt, &options{sharder: self})
}

// setup adds the controllers to the manager, and the observation of Leases, which runs in every replica.
func setup(ctx context.Context, rt *kit.Runtime, o *options) error {
	ages := &lease.Observer{Sight: &lease.Sight{}}

	informer, err := rt.Manager.GetCache().GetInformer(ctx, &coordinationv1.Lease{})
	if err != nil {
		return fmt.Errorf("watch the Leases of shards: %w", err)
	}

	synced, err := shardlease.Observe(informer, ages, rt.Clock)
	if err != nil {
		return err
	}

	rt.AddReady("ages", func(*http.Request) error {
		if !synced() {
			return errors.New("the ages of Leases have not been measured yet")
		}

		return nil
	})

	if err := addHeartbeat(rt, ages.Sight); err != nil {
		return err
	}

	c := rt.Manager.GetClient()
	if err := rt.Manager.Add(&shardlease.Census{Leases: c, Clock: rt.Clock, Ages: ages, EachShard: o.shardMetrics}); err != nil {
		return fmt.Errorf("add the census of shards: %w", err)
	}

	notTaken := &shardlease.NotTaken{}

	shards := &shardlease.Reconciler{
		Client:   c,
		Live:     rt.Live(),
		Clock:    rt.Clock,
		Ages:     ages,
		Events:   rt.Events(name),
		NotTaken: notTaken,
		Sharder:  o.sharder,
	}
	if o.pods {
		if shards.Pods, err = addPods(ctx, rt); err != nil {
			return err
		}
	}

	if err := shards.SetupWithManager(rt.Manager, rt.Clock); err != nil {
		return err
	}

	rings := &ringstatus.Reconciler{
		Client: c, Status: status.Writer{Client: c, Owner: name, Clock: rt.Clock}, NotTaken: notTaken, Sharder: o.sharder,
	}
	if err := rings.SetupWithManager(rt.Manager); err != nil {
		return err
	}

	if rt.Embedded() {
		return nil
	}

	writer := parameters.Writer{Client: c, Restores: kit.NewRestores(rt.Clock)}
	if err := (&parameters.Fences{Writer: writer}).SetupWithManager(rt.Manager); err != nil {
		return err
	}

	return (&parameters.Shards{Writer: writer}).SetupWithManager(rt.Manager)
}

// addPods has the leading replica watch the Pods of shards.
func addPods(ctx context.Context, rt *kit.Runtime) (*pods.Watch, error) {
	clients, err := kubernetes.NewForConfig(rt.Manager.GetConfig())
	if err != nil {
		return nil, fmt.Errorf("create the client of Pods: %w", err)
	}

	rings, err := rt.Manager.GetCache().GetInformer(ctx, &v1alpha1.ClusterRing{})
	if err != nil {
		return nil, fmt.Errorf("watch ClusterRings: %w", err)
	}

	watch := pods.New(clients, rt.Manager.GetClient(), rings, rt.Clock)
	if err := rt.Manager.Add(watch); err != nil {
		return nil, fmt.Errorf("add the watch of Pods: %w", err)
	}

	return watch, nil
}

// addHeartbeat has every replica look at the API server. What is read is this service's leader Lease, which is there or not.
func addHeartbeat(rt *kit.Runtime, sight *lease.Sight) error {
	config := rest.AddUserAgent(rest.CopyConfig(rt.Manager.GetConfig()), "heartbeat")
	// A look must not wait in line behind the writes that many dead shards cause.
	config.QPS, config.RateLimiter = -1, nil

	live, err := client.New(config, client.Options{Scheme: rt.Manager.GetScheme(), Mapper: rt.Manager.GetRESTMapper()})
	if err != nil {
		return fmt.Errorf("create the client of the heartbeat: %w", err)
	}

	err = rt.Manager.Add(&shardlease.Heartbeat{
		Live: live, Lease: rt.Leader(name), Clock: rt.Clock, Sight: sight,
	})
	if err != nil {
		return fmt.Errorf("add the heartbeat: %w", err)
	}

	return nil
}
