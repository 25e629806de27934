package admission

import (
	"context"
	"strings"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/load/internal/objects"
	"github.com/clusterring/clusterring/tools/load/internal/result"
	"github.com/clusterring/clusterring/tools/load/internal/run"
	"github.com/clusterring/clusterring/tools/load/internal/shards"
	"github.com/clusterring/clusterring/tools/load/internal/target"
)

// perFenced is the CPU time of the API server that a fence may add to a write, in milliseconds.
const perFenced = 0.1

// fence compares writes of a shard to its own objects in a ring with a fence, and in one without.
func fence(ctx context.Context, b *run.Bench) error {
	const unfenced = "load-unfenced"

	writers := map[string]*writer{}

	for _, name := range []string{target.FencedRing, unfenced} {
		w, err := newWriter(ctx, b, name, name == target.FencedRing)
		if err != nil {
			return err
		}

		writers[name] = w
	}

	values, floors, err := run.Rounds(ctx, b, writers[target.FencedRing].cost, writers[unfenced].cost)
	if err != nil {
		return err
	}

	added := make([]float64, len(values))
	for i := range values {
		added[i] = values[i] - floors[i]
	}

	b.Report(result.Row{
		ID: fenceRow, Title: "API server CPU that a fence adds to a write of a shard", Unit: "ms", Values: added,
		FloorTitle: "a write without a fence", Floor: floors, Judge: result.JudgeValue, Target: result.Max(perFenced),
		Notes: []string{"A JSON merge patch of an annotation of a ConfigMap by the shard on its label, with a token that is bound to the Pod of the shard."},
	})

	return nil
}

// writer is a shard that writes its objects.
type writer struct {
	bench   *run.Bench
	objects *objects.Client
	batch   objects.Batch
}

// newWriter creates a ring with one shard and its objects, and waits until its fence, if it has one, refuses another Pod.
func newWriter(ctx context.Context, b *run.Bench, name string, fenced bool) (*writer, error) {
	namespace, err := b.System.Namespace(ctx, name)
	if err != nil {
		return nil, err
	}

	ring := shards.Ring{Name: name, Namespace: namespace, Main: objects.ConfigMaps.GroupResource()}
	if fenced {
		ring.Fence = &v1alpha1.Fence{Mode: v1alpha1.FenceEnforce, ServiceAccounts: []v1alpha1.ServiceAccountReference{
			{Namespace: namespace, Name: target.ShardAccount},
		}}
	}

	fleet, err := b.Fleet(ctx, ring, 1)
	if err != nil {
		return nil, err
	}

	w := &writer{bench: b, batch: objects.Batch{Kind: objects.ConfigMaps, Namespace: namespace, Prefix: "fenced", Count: run.Pick(b, 300, 2000)}}
	if w.objects, err = clientOf(ctx, b, namespace, fleet.Held()[0]); err != nil {
		return nil, err
	}

	if err := b.Objects.Create(ctx, w.batch); err != nil {
		return nil, err
	}

	b.Cleanup(func(ctx context.Context) error { return b.Objects.Delete(ctx, w.batch) })

	if err := fleet.AwaitConverged(ctx, ""); err != nil || !fenced {
		return w, err
	}

	stranger, err := clientOf(ctx, b, namespace, "stranger")
	if err != nil {
		return nil, err
	}

	one := w.batch
	one.Count = 1

	err = target.Until(ctx, "the fence refuses a write of another Pod", func(ctx context.Context) (bool, error) {
		err := stranger.Patch(ctx, one, map[string]any{"data": map[string]string{"by": "stranger"}})
		if err != nil && strings.Contains(err.Error(), "fence of ring "+name) {
			return true, nil
		}

		return false, err
	})

	return w, err
}

// clientOf returns a client with the token of a Pod.
func clientOf(ctx context.Context, b *run.Bench, namespace, pod string) (*objects.Client, error) {
	const connections = 2

	config, err := b.Local.ShardConfig(ctx, namespace, pod)
	if err != nil {
		return nil, err
	}

	c, err := objects.New(config, connections)
	if err != nil {
		return nil, err
	}

	b.Cleanup(func(context.Context) error {
		c.Close()
		return nil
	})

	return c, nil
}

// cost writes all objects, and returns the CPU time of the API server per write, in milliseconds.
func (w *writer) cost(ctx context.Context) (float64, error) {
	turn := map[string]any{"metadata": map[string]any{"annotations": map[string]string{"example.com/turn": w.bench.Clock.Now().String()}}}
	ms, err := w.bench.Local.Usage().CPU(target.APIServer, func() error { return w.objects.Patch(ctx, w.batch, turn) })

	return ms / float64(w.batch.Count), err
}
