// Package filled has a ring of ConfigMaps with shards and objects, for measurements of moves and of rest: it fills a ring, lets shards
// die and join, and measures how fast their objects move and what that costs. The floor is the same number of raw patches.
package filled

import (
	"context"
	"fmt"
	"strconv"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/tools/load/internal/objects"
	"github.com/clusterring/clusterring/tools/load/internal/run"
	"github.com/clusterring/clusterring/tools/load/internal/shards"
	"github.com/clusterring/clusterring/tools/load/internal/store"
	"github.com/clusterring/clusterring/tools/load/internal/target"
)

// Ring is a ring with its shards and objects. Create it with [Open]; it is for one goroutine.
type Ring struct {
	*shards.Fleet

	bench *run.Bench
	// raw writes as the rebalancer does: with its rights, by one connection.
	raw   *objects.Client
	store *store.Store
	made  int // objects
	turns int // raw passes
}

// Open declares a ring of ConfigMaps of the given name with so many shards, and no objects, and acknowledges drains as soon as it sees them. Objects,
// ring, and Leases are removed with the bench.
func Open(ctx context.Context, b *run.Bench, name string, size int) (*Ring, error) {
	fleet, err := b.Fleet(ctx, shards.Ring{Name: name, Main: objects.ConfigMaps.GroupResource()}, size)
	if err != nil {
		return nil, err
	}

	w := &Ring{bench: b, Fleet: fleet}

	config, err := b.Local.As(ctx, contract.SystemNamespace, target.Rebalancer)
	if err != nil {
		return nil, err
	}

	if w.raw, err = objects.New(config, 1); err != nil {
		return nil, err
	}

	if w.store, err = store.Open(b.Local.Etcd(), b.Objects); err != nil {
		return nil, err
	}
	b.Cleanup(func(context.Context) error {
		w.raw.Close()
		return w.store.Close()
	})
	// Without objects, nothing has to be drained when the ring is removed.
	b.Remove(func(ctx context.Context) error { return w.store.Clear(ctx, w.Ring.Namespace) })

	stop, err := w.Acknowledge(ctx, objects.ConfigMaps)
	if err != nil {
		return nil, err
	}
	b.Cleanup(func(context.Context) error { return stop() })

	err = w.AwaitConverged(ctx, "")

	return w, err
}

// Objects returns how many objects there are.
func (w *Ring) Objects() int { return w.made }

// Grow creates objects until there are as many as given, each at the shard that the ring assigns it to. It writes them into etcd behind the
// API server's back, without calls of the webhook, which takes seconds instead of minutes.
func (w *Ring) Grow(ctx context.Context, total int) error {
	first := w.made
	if total <= first {
		return nil
	}

	batch := objects.Batch{Kind: objects.ConfigMaps, Namespace: w.Ring.Namespace, Prefix: "object", Count: total}

	owners, err := w.owners(ctx, batch, first)
	if err != nil {
		return fmt.Errorf("ask where objects belong: %w", err)
	}

	label := contract.ShardLabel(w.Ring.Name)
	batch.Labels = func(i int) map[string]string { return map[string]string{label: owners[i-first]} }
	w.made = total

	return w.store.Create(ctx, batch, first)
}

// owners asks the ring query service where the objects of the batch belong, from the first on.
func (w *Ring) owners(ctx context.Context, batch objects.Batch, first int) ([]string, error) {
	group, ctx := errgroup.WithContext(ctx)

	stream, err := w.bench.Local.Queries().LocateAll(ctx)
	if err != nil {
		return nil, err
	}

	owners := make([]string, batch.Count-first)

	group.Go(func() error {
		for i := range owners {
			err := stream.Send(&pb.LocateAllRequest{Id: strconv.Itoa(i), Question: &pb.LocateRequest{
				Ring: w.Ring.Name, NextShards: ptr.To[int32](0),
				Object: &pb.ObjectReference{
					Type: &pb.ObjectReference_Resource{Resource: batch.Kind.Resource}, Namespace: batch.Namespace, Name: batch.Name(first + i),
				},
			}})
			if err != nil {
				return err //nolint:wrapcheck // by the caller
			}
		}

		return stream.CloseSend()
	})
	group.Go(func() error {
		shared := map[string]string{} // one string for each shard

		for range owners {
			answer, err := stream.Recv()
			if err != nil {
				return err //nolint:wrapcheck // by the caller
			}

			i, err := strconv.Atoi(answer.GetId())

			locations := answer.GetAnswer().GetLocations()
			if err != nil || i >= len(owners) || len(locations) != 1 || locations[0].GetShard() == "" {
				return fmt.Errorf("unexpected answer %v", answer)
			}

			shard := locations[0].GetShard()
			if _, known := shared[shard]; !known {
				shared[shard] = shard
			}

			owners[i] = shared[shard]
		}

		return nil
	})

	return owners, group.Wait() //nolint:wrapcheck // by the caller
}

// Restart restarts all services, the rebalancer with more arguments, and waits until they have gone over the ring's objects and are at rest.
// The ring must be settled.
func (w *Ring) Restart(ctx context.Context, more ...string) error {
	ring, err := w.Read(ctx)
	if err != nil {
		return err
	}

	before := assignedSince(ring)

	for _, name := range target.Services {
		var args []string
		if name == target.Rebalancer {
			args = more
		}

		if err := w.bench.Local.Restart(ctx, name, args...); err != nil {
			return err
		}
	}
	// A new rebalancer first reports that it has not looked yet.
	err = w.Await(ctx, "its assignment is reported again", func(ring *v1alpha1.ClusterRing) bool { return assignedSince(ring) != before })
	if err != nil {
		return err
	}

	return w.AwaitConverged(ctx, "")
}

// assignedSince returns when the condition Assigned changed last.
func assignedSince(ring *v1alpha1.ClusterRing) metav1.Time {
	if c := meta.FindStatusCondition(ring.Status.Conditions, v1alpha1.ConditionAssigned); c != nil {
		return c.LastTransitionTime
	}

	return metav1.Time{}
}
