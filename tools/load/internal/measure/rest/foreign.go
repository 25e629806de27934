package rest

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/clusterring/clusterring/tools/load/internal/objects"
	"github.com/clusterring/clusterring/tools/load/internal/result"
	"github.com/clusterring/clusterring/tools/load/internal/run"
	"github.com/clusterring/clusterring/tools/load/internal/shards"
	"github.com/clusterring/clusterring/tools/load/internal/target"
)

const (
	coveredRow = "foreign-covered"
	// perForeign is the CPU time of the rebalancer that a write may take, in milliseconds.
	perForeign = 0.03
	// quiet is how long the rebalancer may take to see what was written.
	quiet = 500 * time.Millisecond
)

// foreign measures what the rebalancer takes for writes of objects of a controlled resource that no object of a ring controls.
func foreign() run.Part {
	return run.Compare([]run.Figure[float64]{{Row: result.Row{
		ID: coveredRow, Title: "rebalancer CPU per write of a ConfigMap in a namespace that the ring covers, no object of which controls the ConfigMap", Unit: "ms",
		Target: result.Max(perForeign), Notes: []string{"Minus the CPU at rest. The ring shards Deployments, and the ConfigMaps that Deployments control."},
	}, Of: run.Itself}}, func(ctx context.Context, b *run.Bench) (write, _ run.Trial[float64], err error) {
		fleet, err := b.Fleet(ctx, shards.Ring{
			Name: "load-strangers", Main: objects.Deployments, Controlled: []schema.GroupResource{objects.ConfigMaps.GroupResource()},
		}, 1)
		if err != nil {
			return nil, nil, err
		}

		if err := fleet.AwaitConverged(ctx, ""); err != nil {
			return nil, nil, err
		}

		write, err = strangers(ctx, b, fleet.Ring.Namespace)

		return write, nil, err
	})
}

// strangers creates ConfigMaps of a namespace, and returns a trial that writes them, and returns the rebalancer's CPU time per write, in
// milliseconds.
func strangers(ctx context.Context, b *run.Bench, namespace string) (run.Trial[float64], error) {
	batch := objects.Batch{Kind: objects.ConfigMaps, Namespace: namespace, Prefix: "stranger", Count: run.Pick(b, 300, 2000)}
	b.Cleanup(func(ctx context.Context) error { return b.Objects.Delete(ctx, batch) })

	return func(ctx context.Context) (float64, error) {
		resting, took, err := spent(ctx, b, func() error { return nil })
		if err != nil {
			return 0, err
		}

		turn := map[string]any{"data": map[string]string{"turn": b.Clock.Now().String()}}
		busy, longer, err := spent(ctx, b, func() error { return b.Objects.Patch(ctx, batch, turn) })

		return (busy - resting*longer/took) / float64(batch.Count), err
	}, b.Objects.Create(ctx, batch)
}

// spent returns the rebalancer's CPU time in milliseconds while do runs and until the rebalancer has certainly seen the result, and how long
// that took in seconds.
func spent(ctx context.Context, b *run.Bench, do func() error) (cpu, took float64, err error) {
	began := b.Clock.Now()
	cpu, err = b.Local.Usage().CPU(target.Rebalancer, func() error {
		if err := do(); err != nil {
			return err
		}

		return b.Pause(ctx, quiet)
	})

	return cpu, b.Clock.Since(began).Seconds(), err
}
