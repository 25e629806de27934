package leasemonitor

import (
	"context"
	"errors"
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/services/internal/clusterring"
	"github.com/clusterring/clusterring/services/internal/kit"
	"github.com/clusterring/clusterring/services/internal/lease"
	"github.com/clusterring/clusterring/services/leasemonitor/parameters"
	"github.com/clusterring/clusterring/services/leasemonitor/pods"
	"github.com/clusterring/clusterring/services/leasemonitor/ringstatus"
	"github.com/clusterring/clusterring/services/leasemonitor/shardlease"
)

// Embed adds what the service does to the manager of another program, for the ring of the given sharder alone.
// Admission policies are none of its concern: they need rights beyond the ring's.
func Embed(ctx context.Context, rt *kit.Runtime, self clusterring.Identity) error {
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

	rt.AddReady("ages", kit.Until(synced, "the ages of Leases have not been measured yet"))

	heartbeat, err := newHeartbeat(rt, ages.Sight)
	if err != nil {
		return err
	}

	rt.AddReady("leases-can-be-written", kit.Until(func() bool {
		_, sees := ages.Sight.Since(lease.MaxDuration, rt.Clock.Now())
		return sees
	}, "no Lease could be written for a while, so none is taken over: see the log"))

	c := rt.Manager.GetClient()
	notTaken := &shardlease.NotTaken{}

	shards := &shardlease.Reconciler{
		Client:   c,
		Live:     rt.Live(),
		Clock:    rt.Clock,
		Ages:     ages,
		Events:   rt.Manager.GetEventRecorder(name),
		NotTaken: notTaken,
		Sharder:  o.sharder,
	}
	if o.pods {
		clients, err := kubernetes.NewForConfig(rt.Manager.GetConfig())
		if err != nil {
			return fmt.Errorf("create the client of Pods: %w", err)
		}

		watch := pods.New(clients, c, rt.Clock)
		if err := rt.Manager.Add(watch); err != nil {
			return fmt.Errorf("add the watch of Pods: %w", err)
		}

		shards.Pods = watch
	}

	rings := &ringstatus.Reconciler{
		Client: c, Status: clusterring.StatusWriter{Client: c, Owner: name,
			Clock: rt.Clock}, NotTaken: notTaken, Sharder: o.sharder,
	}

	err = errors.Join(
		rt.Manager.Add(heartbeat),
		rt.Manager.Add(&shardlease.Census{Leases: c, Clock: rt.Clock, Ages: ages, EachShard: o.shardMetrics}),
		shards.SetupWithManager(rt.Manager),
		rings.SetupWithManager(rt.Manager),
	)
	if err != nil || rt.Embedded() {
		return err
	}

	return errors.Join(
		rt.Manager.Add(&shardlease.Strays{Client: c, Clock: rt.Clock, Ages: ages}),
		(&parameters.Reconciler{Client: c, Restores: kit.NewRestores(rt.Clock)}).SetupWithManager(rt.Manager),
	)
}

// heartbeatSuffix follows the name of the leader Lease in that of the Lease which shows that Leases can be written.
const heartbeatSuffix = "-heartbeat"

// newHeartbeat returns what looks in every replica whether Leases can be written.
func newHeartbeat(rt *kit.Runtime, sight *lease.Sight) (*shardlease.Heartbeat, error) {
	config := rest.AddUserAgent(rest.CopyConfig(rt.Ungated()), "heartbeat")
	// A look must not wait in line behind the writes that many dead shards cause.
	config.QPS, config.RateLimiter = -1, nil

	c, err := client.New(config, client.Options{Scheme: rt.Manager.GetScheme(), Mapper: rt.Manager.GetRESTMapper()})
	if err != nil {
		return nil, fmt.Errorf("create the client of the heartbeat: %w", err)
	}

	id := rt.Leader(name)
	id.Name += heartbeatSuffix

	return &shardlease.Heartbeat{Client: c, Lease: id, Clock: rt.Clock, Sight: sight}, nil
}
