package rest

import (
	"context"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/clusterring/clusterring/tools/load/internal/objects"
	"github.com/clusterring/clusterring/tools/load/internal/result"
	"github.com/clusterring/clusterring/tools/load/internal/run"
	"github.com/clusterring/clusterring/tools/load/internal/shards"
	"github.com/clusterring/clusterring/tools/load/internal/target"
)

const (
	leftOutRow  = "foreign-left-out"
	unnamedRow  = "foreign-left-out-many"
	coveredRow  = "foreign-covered"
	coveredMark = "load.example.com/foreign"
	// perForeign is the CPU time of the rebalancer that a write may take, in milliseconds.
	perForeign = 0.03
	// quiet is how long the rebalancer may take to see what was written.
	quiet = 500 * time.Millisecond
)

// foreign measures what the rebalancer takes for writes of objects of a controlled resource that no object of a ring controls.
func foreign(ctx context.Context, b *run.Bench) error {
	// A ring that covers few namespaces watches each of them. A ring that covers many excludes the others by name, only the first ones if
	// there are too many.
	const many, more = 6, 40

	covered, err := times(many, func() (string, error) { return b.System.Namespace(ctx, "load-covered", coveredMark) })
	if err != nil {
		return err
	}

	first, err := times(1, func() (string, error) { return b.System.Namespace(ctx, "a-left-out") }) // its name is the first one
	if err != nil {
		return err
	}

	others, err := times(more, func() (string, error) { return b.System.Namespace(ctx, "z-left-out") })
	if err != nil {
		return err
	}

	fleet, err := b.Fleet(ctx, shards.Ring{
		Name: "load-strangers", Namespace: covered[0], Label: coveredMark,
		Main: objects.Deployments, Controlled: []schema.GroupResource{objects.ConfigMaps.GroupResource()},
	}, 1)
	if err != nil {
		return err
	}

	if err := fleet.AwaitConverged(ctx, ""); err != nil {
		return err
	}

	place := func(id, title, namespace string) run.Part {
		return run.Compare([]run.Figure[float64]{{Row: result.Row{
			ID: id, Title: "rebalancer CPU per write of a ConfigMap in " + title, Unit: "ms", Target: result.Max(perForeign),
			Notes: []string{"Minus the CPU at rest. The ring shards Deployments, and the ConfigMaps that Deployments control."},
		}, Of: run.Itself}}, func(ctx context.Context, b *run.Bench) (write, _ run.Trial[float64], err error) {
			write, err = strangers(ctx, b, namespace)
			return write, nil, err
		})
	}

	return b.Parts(ctx,
		place(leftOutRow, "a namespace that the ring leaves out", first[0]),
		place(unnamedRow, "a namespace that it leaves out with more than 32 others", slices.Max(others)),
		place(coveredRow, "a namespace that it covers, no object of which controls the ConfigMap", covered[many-1]),
	)
}

// times calls what creates a namespace n times, and returns the names.
func times(n int, namespace func() (string, error)) (names []string, err error) {
	names = make([]string, n)
	for i := range names {
		if names[i], err = namespace(); err != nil {
			return nil, err
		}
	}

	return names, nil
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
