package cluster

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	shardingv1alpha1 "github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/example/api/v1alpha1"
)

// shipsOfEach is the size of a Fleet.
const shipsOfEach = 3

// AddFleets adds Fleets and their Ships to the resources of a ring, and creates the given number of Fleets.
func (c *Cluster) AddFleets(ctx context.Context, ring Ring, count int) error {
	stored := &shardingv1alpha1.ClusterRing{}
	if err := c.Client.Get(ctx, client.ObjectKey{Name: ring.Name}, stored); err != nil {
		return fmt.Errorf("read ring %s: %w", ring.Name, err)
	}

	before := stored.DeepCopy()
	group := v1alpha1.SchemeGroupVersion.Group

	stored.Spec.Resources = append(stored.Spec.Resources, shardingv1alpha1.RingResource{
		Group: group, Resource: "fleets", ControlledResources: []shardingv1alpha1.ControlledResource{{Group: group, Resource: "ships"}},
	})
	if err := c.Client.Patch(ctx, stored, client.MergeFrom(before)); err != nil {
		return fmt.Errorf("add Fleets to ring %s: %w", ring.Name, err)
	}

	fleets := make([]client.Object, count)
	for i := range fleets {
		fleets[i] = &v1alpha1.Fleet{
			ObjectMeta: metav1.ObjectMeta{Namespace: ring.Namespace(), Name: fmt.Sprintf("fleet-%d", i)},
			Spec:       v1alpha1.FleetSpec{Replicas: shipsOfEach},
		}
	}

	return c.create(ctx, fleets...)
}

// Fleets returns the Fleets of the ring. It returns an error if a Fleet is not complete, or a Ship has another shard than its Fleet.
func (c *Cluster) Fleets(ctx context.Context, ring Ring) ([]v1alpha1.Fleet, error) {
	var (
		fleets v1alpha1.FleetList
		ships  v1alpha1.ShipList
	)
	for _, list := range []client.ObjectList{&ships, &fleets} {
		if err := c.Client.List(ctx, list, client.InNamespace(ring.Namespace())); err != nil {
			return nil, fmt.Errorf("list the Fleets of ring %s and their Ships: %w", ring.Name, err)
		}
	}

	label := contract.ShardLabel(ring.Name)
	at := map[string]int{}

	for i := range ships.Items {
		if controller := metav1.GetControllerOfNoCopy(&ships.Items[i]); controller != nil {
			at[string(controller.UID)+" "+ships.Items[i].Labels[label]]++
		}
	}

	for i := range fleets.Items {
		fleet := &fleets.Items[i]
		if with := at[string(fleet.UID)+" "+fleet.Labels[label]]; with != int(fleet.Spec.Replicas) || !fleet.Done() || fleet.Labels[label] == "" {
			return nil, fmt.Errorf("ring %s: Fleet %s has the shard %q with %d of %d Ships, and the status %+v",
				ring.Name, fleet.Name, fleet.Labels[label], with, fleet.Spec.Replicas, fleet.Status)
		}
	}

	return fleets.Items, nil
}
