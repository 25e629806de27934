// Package world is a ring of ConfigMaps with shards and objects, for measurements of moves and of rest: it fills a ring, lets shards
// die and join, and tells how fast their objects moved and what that cost; and it writes what is the floor of that, raw patches.
package world

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/tools/load/internal/objects"
	"github.com/clusterring/clusterring/tools/load/internal/run"
	"github.com/clusterring/clusterring/tools/load/internal/shards"
	"github.com/clusterring/clusterring/tools/load/internal/store"
	"github.com/clusterring/clusterring/tools/load/internal/target"
)

// World is a ring with its shards and objects. Make it with [Open]; it is for one goroutine.
type World struct {
	*shards.Fleet

	bench  *run.Bench
	drains *shards.Drains
	// raw writes as the rebalancer does: with its rights, by one connection.
	raw   *objects.Client
	store *store.Store
	made  int // objects
	turns int // raw passes
}

// Open declares a ring of the given name with so many shards, and no objects. From now on drains are acknowledged as soon as they
// are seen. Close ends that.
func Open(ctx context.Context, b *run.Bench, name string, size int) (w *World, err error) {
	fleet, err := b.Fleet(ctx, shards.Ring{Name: name, Main: objects.ConfigMaps.GroupResource()})
	if err != nil {
		return nil, err
	}

	w = &World{bench: b, Fleet: fleet}

	config, err := b.Local.As(ctx, v1alpha1.SystemNamespace, target.Rebalancer)
	if err != nil {
		return nil, err
	}

	if w.raw, err = objects.New(config, 1); err != nil {
		return nil, err
	}

	if w.store, err = store.Open(b.Local.Etcd(), b.Objects); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.Close(context.WithoutCancel(ctx)))
		}
	}()

	if _, err := w.Fleet.Join(ctx, size); err != nil {
		return w, err
	}

	if err := w.Declare(ctx); err != nil {
		return w, err
	}

	w.drains = w.Acknowledge(ctx, run.Concurrency, objects.ConfigMaps)
	if err := w.AwaitConverged(ctx, ""); err != nil {
		return w, err
	}

	return w, nil
}

// Close removes objects, ring and Leases, unless all that there is ends with this measurement.
func (w *World) Close(ctx context.Context) error {
	var errs []error
	if w.drains != nil {
		errs = append(errs, w.drains.Stop())
	}
	w.raw.Close()

	if !w.bench.Last() {
		// Without objects, nothing has to be drained.
		errs = append(errs, w.store.Clear(ctx, w.Ring.Namespace), w.Fleet.Close(ctx))
	}

	return errors.Join(append(errs, w.store.Close())...)
}

// Objects returns how many objects there are.
func (w *World) Objects() int { return w.made }

func (w *World) batch(count int) objects.Batch {
	return objects.Batch{Kind: objects.ConfigMaps, Namespace: w.Ring.Namespace, Prefix: "object", Count: count}
}

// Grow creates objects until there are as many as given, each at the shard that the ring gives it to, and without a call of the
// webhook: behind the API server's back, which would take minutes for what takes seconds.
func (w *World) Grow(ctx context.Context, total int) error {
	first := w.made
	if total <= first {
		return nil
	}

	batch := w.batch(total)

	owners, err := w.owners(ctx, batch, first)
	if err != nil {
		return err
	}

	label := v1alpha1.ShardLabel(w.Ring.Name)
	batch.Labels = func(i int) map[string]string { return map[string]string{label: owners[i-first]} }
	w.made = total // so that Close deletes what an error leaves

	return w.store.Create(ctx, batch, first)
}

// owners asks the ring query service where the objects of the batch belong, from the first on.
func (w *World) owners(ctx context.Context, batch objects.Batch, first int) (owners []string, err error) {
	connection, err := grpc.NewClient(w.bench.Local.RingQueryAddress(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("connect to the ring query service: %w", err)
	}
	defer func() { err = errors.Join(err, connection.Close()) }()

	group, ctx := errgroup.WithContext(ctx)

	stream, err := pb.NewDiagnosticsServiceClient(connection).LocateAll(ctx)
	if err != nil {
		return nil, fmt.Errorf("ask where objects belong: %w", err)
	}

	owners = make([]string, batch.Count-first)
	shared := map[string]string{} // one string for each shard
	group.Go(func() error {
		for i := range owners {
			if err := stream.Send(w.question(batch, first, i)); err != nil {
				return fmt.Errorf("ask where objects belong: %w", err)
			}
		}

		return stream.CloseSend()
	})
	group.Go(func() error {
		for range owners {
			answer, err := stream.Recv()
			if err != nil {
				return fmt.Errorf("ask where objects belong: %w", err)
			}

			i, err := strconv.Atoi(answer.GetId())

			locations := answer.GetAnswer().GetLocations()
			if err != nil || i >= len(owners) || len(locations) != 1 || locations[0].GetShard() == "" {
				return fmt.Errorf("ask where objects belong: got %v", answer)
			}

			shard := locations[0].GetShard()
			if _, ok := shared[shard]; !ok {
				shared[shard] = shard
			}

			owners[i] = shared[shard]
		}

		return nil
	})

	return owners, group.Wait() //nolint:wrapcheck // from here
}

func (w *World) question(batch objects.Batch, first, i int) *pb.LocateAllRequest {
	return &pb.LocateAllRequest{Id: strconv.Itoa(i), Question: &pb.LocateRequest{
		Ring: w.Ring.Name, NextShards: ptr.To[int32](0),
		Object: &pb.ObjectReference{
			Type: &pb.ObjectReference_Resource{Resource: batch.Kind.Resource}, Namespace: batch.Namespace, Name: batch.Name(first + i),
		},
	}}
}

// Restart starts all services anew, the rebalancer with more arguments, and waits until the new ones have gone over the ring's objects
// and rest. The ring has to be settled.
func (w *World) Restart(ctx context.Context, more ...string) error {
	ring, err := w.Read(ctx)
	if err != nil {
		return err
	}

	before := assignedSince(ring)

	for _, name := range target.Services {
		args := more
		if name != target.Rebalancer {
			args = nil
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

// assignedSince returns when the condition Assigned has last changed.
func assignedSince(ring *v1alpha1.ClusterRing) metav1.Time {
	if c := meta.FindStatusCondition(ring.Status.Conditions, v1alpha1.ConditionAssigned); c != nil {
		return c.LastTransitionTime
	}

	return metav1.Time{}
}
