// Package leasemonitor is the service that detects failed shards.
//
// It reads ClusterRings and the Leases that carry a ring's label, and decides with package lease. It writes the state of each Lease
// on it, takes over the Lease of a shard that has stopped renewing, deletes a Lease that nobody holds any more, and reports in each
// ring's status how many shards it has. Only one replica writes at a time. The others watch, so that they know the age of every
// Lease when they take over.
package leasemonitor

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/spf13/cobra"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/services/internal/kit"
	"github.com/clusterring/clusterring/services/internal/lease"
	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/services/internal/status"
	"github.com/clusterring/clusterring/services/leasemonitor/ringstatus"
	"github.com/clusterring/clusterring/services/leasemonitor/shardlease"
)

// name is that of the binary, of the leader Lease and of the field manager.
const name = "leasemonitor"

// NewCommand returns the command of the service.
func NewCommand() *cobra.Command {
	return kit.NewCommand(kit.Service{
		Name:           name,
		Short:          "Monitors the Leases of shards: is each shard alive?",
		Long:           long,
		Example:        example,
		LeaderElection: true,
		Setup:          setup,
	})
}

const long = `leasemonitor monitors the Leases of shards: is each shard alive?

It measures how long each Lease with the label alpha.sharding.timebertt.dev/clusterring=<ring> has not been renewed. It uses
its own clock, counts from when it saw the Lease change, and does not count the time in which it could not see the API server.
It writes the shard's state into the label alpha.sharding.timebertt.dev/state. D is the Lease's leaseDurationSeconds:

  ready      held by the shard, renewed less than D ago
  expired    held by the shard, renewed D to 2D ago
  uncertain  held by the shard, renewed more than 2D ago:  the Lease is taken over
  dead       not held by the shard: released, or taken over; its objects go to other shards
  orphaned   dead, and expired for a minute:               the Lease is deleted

If more than half of a ring's shards fall silent at the same time, it emits an event and waits for another D. While the ring's
status (lostShards) reports that objects of a dead shard are still being moved, it keeps the Lease from the shard.

It also writes the numbers of shards and the conditions ShardsAvailable and Ready into the status of each ClusterRing. Both
are False while the Lease of a shard that has stopped renewing cannot be taken over.

Any number of replicas may run. One of them writes. The others also watch, so that a failed shard is detected in time while
the writing replica is replaced.`

const example = `  # in a cluster, with the permissions of its service account
  leasemonitor

  # on your machine, next to other services: every port is a flag
  leasemonitor --kubeconfig ~/.kube/config --log-format text --metrics-bind-address :9080 --health-probe-bind-address :9081

  # the state of your shards
  kubectl get leases -A -L alpha.sharding.timebertt.dev/clusterring,alpha.sharding.timebertt.dev/state
  kubectl get clusterrings`

// setup adds the controllers to the manager, and the observation of Leases, which runs in every replica.
func setup(ctx context.Context, rt *kit.Runtime) error {
	index, ages := membership.NewIndex(), &lease.Observer{Sight: &lease.Sight{}}
	if err := kit.WatchLeases(ctx, rt, index); err != nil {
		return err
	}

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
	if err := rt.Manager.Add(&shardlease.Census{Leases: c, Clock: rt.Clock, Ages: ages}); err != nil {
		return fmt.Errorf("add the census of shards: %w", err)
	}

	notTaken := &shardlease.NotTaken{}
	shards := &shardlease.Reconciler{
		Client:   c,
		Live:     rt.Manager.GetAPIReader(),
		Clock:    rt.Clock,
		Ages:     ages,
		Events:   rt.Manager.GetEventRecorder(name),
		NotTaken: notTaken,
	}
	if err := shards.AddTo(rt.Manager, rt.Clock); err != nil {
		return err
	}

	rings := &ringstatus.Reconciler{Client: c, Status: status.Writer{Client: c, Owner: name, Clock: rt.Clock}, NotTaken: notTaken}

	return rings.AddTo(rt.Manager, index)
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
		Live: live, Lease: types.NamespacedName{Namespace: rt.Options.Namespace, Name: name}, Clock: rt.Clock, Sight: sight,
	})
	if err != nil {
		return fmt.Errorf("add the heartbeat: %w", err)
	}

	return nil
}
