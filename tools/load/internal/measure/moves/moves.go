// Package moves measures what it takes to move objects away from a dead shard and to a new one, and how soon it begins.
// The floor is the same number of raw patches of metadata, as the rebalancer sends them.
package moves

import (
	"context"
	"fmt"
	"time"

	"github.com/clusterring/clusterring/tools/load/internal/measure/filled"
	"github.com/clusterring/clusterring/tools/load/internal/result"
	"github.com/clusterring/clusterring/tools/load/internal/run"
)

const (
	releaseRow    = "moves-release-thousand"
	deathRow      = "moves-death"
	apiServerRow  = "moves-death-apiserver"
	rebalancerRow = "moves-death-rebalancer"
	joinRow       = "moves-join"
	manyRow       = "moves-many-shards"

	// threeShards is the number of shards in most rows. With few objects, one of the shards has a thousand or more.
	threeShards, few = 3, 3300
	// threeHundred is the largest number of shards that die.
	threeHundred = 300

	patch     = "raw metadata PATCH, same concurrency"
	countedTo = "CPU counts until the last object has moved."
)

// Measurements returns what this package measures.
func Measurements() []run.Measurement {
	return []run.Measurement{
		{
			Name: "moves", Small: 40 * time.Second, Full: 250 * time.Second, Parts: []run.Part{
				{Name: "release", Rows: []string{releaseRow}, Run: release},
				{Rows: []string{deathRow, apiServerRow, rebalancerRow, joinRow}, Run: three},
			},
		},
		{
			Name: "moves-by-shards", Small: 40 * time.Second, Full: 420 * time.Second, Parts: []run.Part{{
				Rows: []string{manyRow}, Series: filled.Series(result.OverShards, "a third of the shards"), Run: byShards,
			}},
		},
	}
}

// release measures how soon objects move after their shard has released its Lease.
func release(ctx context.Context, b *run.Bench) error {
	w, err := filled.Open(ctx, b, "load-release", threeShards)
	if err != nil {
		return err
	}

	if err := w.Grow(ctx, few); err != nil {
		return err
	}

	return run.Compare(ctx, b, run.Sides[filled.Cost]{Value: func(ctx context.Context) (filled.Cost, error) {
		c, err := w.Leave(ctx, w.Held()[:1], w.Release)
		if err == nil && c.Thousand == 0 {
			err = fmt.Errorf("only %d objects had to move", c.Moved)
		}

		if err != nil {
			return c, err
		}

		_, err = w.Join(ctx, 1)

		return c, err
	}, Floor: func(ctx context.Context) (filled.Cost, error) { return w.Least(ctx, 1) }}, run.Figure[filled.Cost]{
		Row: result.Row{
			ID: releaseRow, Title: "time from a Lease's release to the last of 1,000 moved objects", Unit: "s",
			FloorTitle: "1,000 raw PATCHes", Judge: result.JudgeValue, Target: result.Max(1),
		}, Of: func(c filled.Cost) float64 { return c.Thousand },
	})
}

// rounds makes a ring of so many shards, and measures deaths of a third of them, but not more than 300. After each, as
// many join, which takes longer than the death and its floor.
func rounds(ctx context.Context, b *run.Bench, size, objects int) ([]filled.Round, error) {
	w, err := filled.Open(ctx, b, "load-moves", size)
	if err != nil {
		return nil, err
	}

	if err := w.Grow(ctx, objects); err != nil {
		return nil, err
	}

	all, _, err := run.Rounds(ctx, b, func(ctx context.Context) (filled.Round, error) {
		return w.Round(ctx, dying(size))
	}, nil)

	return all, err
}

func dying(shards int) int { return min(shards/threeShards, threeHundred) }

// three measures with three shards.
func three(ctx context.Context, b *run.Bench) error {
	objects := run.Pick(b, few, 10_000)

	all, err := rounds(ctx, b, threeShards, objects)
	if err != nil {
		return err
	}

	with := fmt.Sprintf("%d objects, %d shards", objects, threeShards)
	died, least := filled.Column(all)
	run.Report(b, died, least, []run.Figure[filled.Cost]{
		{Row: result.Row{
			ID: deathRow, Title: "objects moved per second after a shard's death, " + with, Unit: "objects/s",
			FloorTitle: patch, Target: result.Min(0.85), PriorArt: "0.21 / 0.51",
			Notes: []string{"The time counts from the loss of the Lease to the last object."},
		}, Of: filled.Rate},
		{Row: result.Row{
			ID: apiServerRow, Title: "API server CPU per moved object", Unit: "ms",
			FloorTitle: "same raw PATCH", Target: result.Max(1.2), PriorArt: "3.0 / 1.7", Notes: []string{countedTo},
		}, Of: filled.APIServer},
		{Row: result.Row{
			ID: rebalancerRow, Title: "rebalancer CPU per moved object", Unit: "ms",
			Target: result.Max(0.2), PriorArt: "0.68 / 0.48 ms", Notes: []string{countedTo},
		}, Of: filled.Rebalancer},
	}...)
	b.Report(result.Row{
		ID: joinRow, Title: "join: objects drained and released to the new shard per second, " + with, Unit: "objects/s",
		Values:     result.Column(all, func(r filled.Round) float64 { return r.Joined.Rate }),
		FloorTitle: "two raw PATCHes per object", Floor: result.Column(least, func(c filled.Cost) float64 { return c.Rate / 2 }),
		Target: result.Min(0.9), PriorArt: "0.36 / 0.64",
		Notes: []string{"The drain label names the next shard, and the shard that releases the object writes this name " +
			"into its shard label. No other write is necessary."},
	})

	return nil
}

// byShards measures with more and more shards.
func byShards(ctx context.Context, b *run.Bench) error {
	var parts []run.Part

	sizes := run.Pick(b, []int{3, 30}, []int{3, 10, 30, 100, 300, 1000})
	for i, size := range sizes {
		parts = append(parts, run.Part{Name: fmt.Sprintf("%d shards", size), Run: func(
			ctx context.Context, b *run.Bench,
		) error {
			all, err := rounds(ctx, b, size, run.Pick(b, 1000, 6000))
			if err != nil {
				return err
			}

			filled.Draw(b, result.OverShards, size, all...)

			if i == len(sizes)-1 {
				died, least := filled.Column(all)
				run.Report(b, died, least, run.Figure[filled.Cost]{Row: result.Row{
					ID: manyRow, Title: fmt.Sprintf("objects moved per second after the death of %d of %s shards", dying(size),
						result.Number(float64(size))), Unit: "objects/s",
					FloorTitle: patch + ", after two PATCHes of each Lease that is lost", Target: result.Min(0.8),
				}, Of: filled.Rate})
			}

			return nil
		}})
	}

	return b.Parts(ctx, parts...)
}
