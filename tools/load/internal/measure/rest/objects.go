package rest

import (
	"context"
	"fmt"

	"github.com/clusterring/clusterring/tools/load/internal/measure/filled"
	"github.com/clusterring/clusterring/tools/load/internal/result"
	"github.com/clusterring/clusterring/tools/load/internal/run"
	"github.com/clusterring/clusterring/tools/load/internal/target"
)

const (
	restSeries      = "rest-cpu-by-objects"
	memorySeries    = "rest-memory-by-objects"
	rateSeries      = "moves-by-objects"
	apiServerSeries = "moves-apiserver-by-objects"
	cpuSeries       = "moves-rebalancer-by-objects"
	passSeries      = "pass-by-objects"
	peakSeries      = "rebalancer-peak-memory-by-objects"

	// shardCount is the number of shards before one more joins.
	shardCount = 20
)

func objectsPart() run.Part {
	over := func(id, title, unit string) result.Series {
		return result.Series{ID: id, Title: title, Over: result.OverObjects, Unit: unit}
	}

	return run.Part{
		Run: byObjects,
		Series: []result.Series{
			over(restSeries, "CPU of all services at rest", "ms/s"),
			over(memorySeries, "Memory of all services at rest", "MiB"),
			over(rateSeries, "Objects moved per second after the death of one of 20 shards", "objects/s"),
			over(apiServerSeries, "API server CPU per moved object, after the death of one of 20 shards", "ms"),
			over(cpuSeries, "Rebalancer CPU per moved object, after the death of one of 20 shards", "ms"),
			over(passSeries, "API server and rebalancer CPU of the pass over all objects that follows a change, per object", "µs"),
			over(peakSeries, "Peak of the rebalancer's memory when a shard joins 19", "MiB"),
		},
	}
}

// byObjects measures with more and more objects.
func byObjects(ctx context.Context, b *run.Bench) error {
	w, err := filled.Open(ctx, b, "load-objects", shardCount)
	if err != nil {
		return err
	}

	sizes := run.Pick(b, []int{0, 500, 2500}, []int{0, 1000, 10_000, 200_000})
	for _, size := range sizes {
		if err := w.Grow(ctx, size); err != nil {
			return fmt.Errorf("%d objects: %w", size, err)
		}
		// The services do not know the objects that were written behind the API server's back until they start again.
		if err := w.Restart(ctx); err != nil {
			return fmt.Errorf("%d objects: %w", size, err)
		}

		if b.Wants(restSeries, memorySeries) {
			now, err := windows(ctx, b)
			if err != nil {
				return fmt.Errorf("%d objects: %w", size, err)
			}
			b.Point(restSeries, size, column(now, cpuOf), nil)
			b.Point(memorySeries, size, column(now, memoryOf), nil)
		}

		if size > 0 && b.Wants(rateSeries, apiServerSeries, cpuSeries, passSeries, peakSeries) {
			if err := moving(ctx, b, w); err != nil {
				return fmt.Errorf("%d objects: %w", size, err)
			}
		}
	}

	return nil
}

// moving measures a death and a join.
func moving(ctx context.Context, b *run.Bench, w *filled.Ring) error {
	size := w.Objects()

	least, err := w.Least(ctx, 1)
	if err != nil {
		return err
	}

	died, err := w.Die(ctx, 1)
	if err != nil {
		return err
	}

	b.Progress("%d objects, a death: %v; floor: %v", size, died, least)
	b.Point(rateSeries, size, []float64{died.Rate}, []float64{least.Rate})
	b.Point(apiServerSeries, size, []float64{died.APIServer}, []float64{least.APIServer})
	b.Point(cpuSeries, size, []float64{died.Rebalancer}, nil)
	b.Point(passSeries, size, []float64{died.Pass}, nil)

	reader := b.Local.Usage()
	if err := reader.ResetPeaks(); err != nil {
		return err
	}

	joined, err := w.Join(ctx, 1)
	if err != nil {
		return err
	}

	used, err := reader.Read()
	if err != nil {
		return err
	}

	memory := []float64{peak(used[target.Rebalancer])}
	b.Progress("%d objects, a join: %v; peak of the rebalancer's memory: %.1f MiB", size, joined, memory[0])
	b.Point(peakSeries, size, memory, nil)

	return nil
}
