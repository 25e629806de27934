package rest

import (
	"context"
	"fmt"
	"strconv"

	"github.com/clusterring/clusterring/tools/load/internal/figure"
	"github.com/clusterring/clusterring/tools/load/internal/measure/filled"
	"github.com/clusterring/clusterring/tools/load/internal/result"
	"github.com/clusterring/clusterring/tools/load/internal/run"
)

const (
	ringsCPURow  = "rings-rest-cpu"
	ringsFairRow = "rings-fair"

	// ringShards is the number of shards of each of many rings, ringObjects that of its objects.
	ringShards, ringObjects = 3, 300
)

// crowded measures many rings at rest.
func crowded(ctx context.Context, b *run.Bench) error {
	count := run.Pick(b, 10, 100)

	alone, err := windows(ctx, b)
	if err != nil {
		return err
	}

	err = b.Each(ctx, count, func(b *run.Bench, i int) error {
		w, err := filled.Open(ctx, b, "load-rings-"+strconv.Itoa(i), ringShards)
		if err != nil {
			return err
		}

		return w.Grow(ctx, ringObjects)
	})
	if err != nil {
		return err
	}

	together, err := windows(ctx, b)
	if err != nil {
		return err
	}

	values := column(together, cpuOf)
	for i, none := range column(alone, cpuOf) {
		values[i] = (values[i] - none) / float64(count)
	}

	b.Report(result.Row{
		ID: ringsCPURow, Title: fmt.Sprintf("the services at rest with %d rings of %d shards: CPU per ring", count, ringShards), Unit: "ms/s", Values: values,
		Target: result.Max(0.1), Notes: []string{"The sum of all four services, minus what they use without a ring, per ring. Each ring is audited once a minute."},
	})

	return nil
}

// fairness measures whether the only object of a ring waits for the many of another.
func fairness(ctx context.Context, b *run.Bench) error {
	// Each turn takes a shard of either ring, and moves its objects.
	large, err := filled.Open(ctx, b, "load-large", shardCount)
	if err != nil {
		return err
	}

	small, err := filled.Open(ctx, b, "load-single", shardCount)
	if err != nil {
		return err
	}

	many := run.Pick(b, 3000, 20_000)
	if err := large.Grow(ctx, many); err != nil {
		return err
	}

	if err := small.Grow(ctx, 1); err != nil {
		return err
	}

	alone := func(ctx context.Context) (float64, error) { return small.Orphan(ctx, nil) }

	values, floors, err := run.Rounds(ctx, b, func(ctx context.Context) (took float64, err error) {
		_, err = large.Orphan(ctx, func(ctx context.Context) error {
			took, err = alone(ctx)
			return err
		})

		return took, err
	}, alone)
	if err != nil {
		return err
	}
	b.Report(result.Row{
		ID: ringsFairRow, Unit: "s", Values: values, FloorTitle: "while nothing else happens", Floor: floors, Judge: result.JudgeValue, Target: result.Max(0.5),
		Title: fmt.Sprintf("time until the only object of a ring has moved, while another ring moves %s or more", figure.Number(float64(many/shardCount))),
	})

	return nil
}
