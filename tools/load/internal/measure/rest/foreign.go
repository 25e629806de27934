package rest

import (
	"context"
	"errors"
	"fmt"
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
	// perForeign is what a write may take of the rebalancer's CPU, in milliseconds.
	perForeign = 0.03
	// quiet is how long the rebalancer may take to see what was written.
	quiet = 500 * time.Millisecond
)

func foreignWrites() run.Measurement {
	return run.Measurement{
		Name: "foreign-writes", IDs: []string{leftOutRow, unnamedRow, coveredRow},
		Budget: map[run.Scale]time.Duration{run.Small: 10 * time.Second, run.Full: 60 * time.Second}, Run: foreign,
	}
}

// foreign measures what the rebalancer takes for writes of objects of a controlled resource that no object of a ring controls.
func foreign(ctx context.Context, b *run.Bench) (rows []result.Row, series []result.Series, err error) {
	// A ring that covers few namespaces watches each of them; that of many leaves others out by name, the first ones if there are too
	// many.
	const (
		many, more = 6, 40
		ringName   = "load-strangers"
	)

	covered := make([]string, many)
	for i := range covered {
		if covered[i], err = b.System.Namespace(ctx, "load-covered", coveredMark); err != nil {
			return nil, nil, err
		}
	}

	first, err := b.System.Namespace(ctx, "a-left-out") // its name is the first one
	if err != nil {
		return nil, nil, err
	}

	fleet, err := b.Fleet(ctx, shards.Ring{
		Name: ringName, Namespace: covered[0], Label: coveredMark,
		Main: objects.Deployments, Controlled: []schema.GroupResource{objects.ConfigMaps.GroupResource()},
	})
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, fleet.Close(context.WithoutCancel(ctx))) }()

	if _, err := fleet.Join(ctx, 1); err != nil {
		return nil, nil, err
	}

	others := make([]string, more)
	for i := range others {
		if others[i], err = b.System.Namespace(ctx, "z-left-out"); err != nil {
			return nil, nil, err
		}
	}

	if err := fleet.Declare(ctx); err != nil {
		return nil, nil, err
	}

	if err := fleet.AwaitAssigned(ctx); err != nil {
		return nil, nil, err
	}

	places := []struct{ id, title, namespace string }{
		{leftOutRow, "a namespace that the ring leaves out", first},
		{unnamedRow, "a namespace that it leaves out with more than 32 others", slices.Max(others)},
		{coveredRow, "a namespace that it covers, no object of which controls the ConfigMap", covered[many-1]},
	}
	for i, where := range places {
		if !b.Wants(where.id) {
			continue
		}

		values, err := strangers(ctx, b.Share(len(places)-i), where.namespace)
		if err != nil {
			return nil, nil, err
		}

		rows = append(rows, result.Row{
			ID: where.id, Title: "rebalancer CPU per write of a ConfigMap in " + where.title, Unit: "ms", Values: values,
			Judge: result.JudgeValue, Target: result.Target{Bound: result.AtMost, Value: perForeign, Unit: "ms"},
			Notes: []string{"Less what it takes at rest. The ring shards Deployments, and ConfigMaps that these control."},
		})
	}

	return rows, nil, nil
}

// strangers writes ConfigMaps of a namespace, and returns the rebalancer's CPU time per write, in milliseconds.
func strangers(ctx context.Context, b *run.Bench, namespace string) (values []float64, err error) {
	batch := objects.Batch{Kind: objects.ConfigMaps, Namespace: namespace, Prefix: "stranger", Count: run.Pick(b, 300, 2000), Concurrency: run.Concurrency}
	if err := b.Objects.Create(ctx, batch); err != nil {
		return nil, err
	}

	turn := 0
	values, _, err = run.Rounds(ctx, b, func(ctx context.Context) (float64, error) {
		resting, took, err := spent(ctx, b, func(context.Context) error { return nil })
		if err != nil {
			return 0, err
		}
		turn++
		body := fmt.Appendf(nil, `{"data":{"turn":"%d"}}`, turn)

		busy, longer, err := spent(ctx, b, func(ctx context.Context) error { return b.Objects.Patch(ctx, batch, func(int) []byte { return body }) })
		if err != nil {
			return 0, err
		}

		own := busy.Seconds() - resting.Seconds()*longer.Seconds()/took.Seconds()

		return own * 1000 / float64(batch.Count), nil
	}, nil)

	return values, errors.Join(err, b.Objects.Delete(context.WithoutCancel(ctx), batch))
}

// spent returns the rebalancer's CPU time while something is done and until it has surely seen that, and how long that was.
func spent(ctx context.Context, b *run.Bench, do func(context.Context) error) (cpu, took time.Duration, err error) {
	began := b.Clock.Now()
	used, err := b.Local.Usage().During(func() error {
		if err := do(ctx); err != nil {
			return err
		}

		return b.Pause(ctx, quiet)
	})

	return used[target.Rebalancer].CPU, b.Clock.Since(began), err
}
