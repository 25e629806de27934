// Package moves measures what it takes to move objects away from dead shards and to new ones, with more and more
// shards. The floor is the same number of raw patches of metadata, as the rebalancer sends them.
package moves

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/clusterring/clusterring/tools/load/internal/measure/filled"
	"github.com/clusterring/clusterring/tools/load/internal/result"
	"github.com/clusterring/clusterring/tools/load/internal/run"
)

const (
	deathRow      = "moves-death"
	apiServerRow  = "moves-death-apiserver"
	rebalancerRow = "moves-death-rebalancer"
	joinRow       = "moves-join"
	manyRow       = "moves-many-shards"

	rateChart       = "moves-by-shards"
	apiServerChart  = "moves-apiserver-by-shards"
	rebalancerChart = "moves-rebalancer-by-shards"

	// few is the number of shards of most rows.
	few = 3
	// threeHundred is the largest number of shards that die.
	threeHundred = 300

	patch     = "raw metadata PATCH, same concurrency"
	countedTo = "CPU counts until the last object has moved."
)

var (
	rowsOfFew = []string{deathRow, apiServerRow, rebalancerRow, joinRow}
	charts    = []string{rateChart, apiServerChart, rebalancerChart}
)

// Measurements returns what this package measures.
func Measurements() []run.Measurement {
	return []run.Measurement{{
		Name: "moves", Small: 80 * time.Second, Full: 700 * time.Second,
		Parts: []run.Part{{Rows: slices.Concat(rowsOfFew, []string{manyRow}, charts), Run: measure}},
	}}
}

// measure measures with more and more shards.
func measure(ctx context.Context, b *run.Bench) error {
	var parts []run.Part

	sizes := run.Pick(b, []int{few, 30}, []int{few, 10, 30, 100, 300, 1000})
	for _, size := range sizes {
		e := experiment{size: size, objects: run.Pick(b, 1000, 6000)}

		switch size {
		case few:
			e.rows, e.objects = rowsOfFew, run.Pick(b, 3300, 10_000)
		case sizes[len(sizes)-1]:
			e.rows = []string{manyRow}
		}

		parts = append(parts, run.Part{
			Name: fmt.Sprintf("%d shards", size), Rows: slices.Concat(e.rows, charts), Run: e.measure,
		})
	}

	return b.Parts(ctx, parts...)
}

// experiment is a ring of so many shards and objects, which has some rows.
type experiment struct {
	size, objects int
	rows          []string
}

// measure measures deaths of a third of the shards, but not of more than 300. After each, as many join, which takes
// longer than the death and its floor.
func (e experiment) measure(ctx context.Context, b *run.Bench) error {
	w, err := filled.Open(ctx, b, "load-moves", e.size)
	if err != nil {
		return err
	}

	if err := w.Grow(ctx, e.objects); err != nil {
		return err
	}

	all, _, err := run.Rounds(ctx, b, func(ctx context.Context) (filled.Round, error) {
		return w.Round(ctx, e.dying())
	}, nil)
	if err == nil {
		e.report(b, all)
	}

	return err
}

func (e experiment) dying() int { return min(e.size/few, threeHundred) }

func (e experiment) report(b *run.Bench, all []filled.Round) {
	rates := result.Column(all, func(r filled.Round) float64 { return r.Died.Rate })
	raw := result.Column(all, func(r filled.Round) float64 { return r.Least.Rate })
	server := result.Column(all, func(r filled.Round) float64 { return r.Died.APIServer })
	rawServer := result.Column(all, func(r filled.Round) float64 { return r.Least.APIServer })
	own := result.Column(all, func(r filled.Round) float64 { return r.Died.Rebalancer })

	b.Grow(result.Chart{
		ID: rateChart, Title: "Objects moved per second after the death of a third of the shards",
		X: "shards", Y: "objects/s",
	}, e.size, rates, raw)
	b.Grow(result.Chart{ID: apiServerChart, Title: "API server CPU per moved object", X: "shards", Y: "ms"},
		e.size, server, rawServer)
	b.Grow(result.Chart{ID: rebalancerChart, Title: "Rebalancer CPU per moved object", X: "shards", Y: "ms"},
		e.size, own, nil) // it has no part in the floor

	with := fmt.Sprintf("%d objects, %d shards", e.objects, e.size)
	for _, row := range []result.Row{
		{
			ID: deathRow, Title: "objects moved per second after a shard's death, " + with, Unit: "objects/s",
			Values: rates, FloorTitle: patch, Floor: raw, Target: result.Min(0.85), PriorArt: "0.21 / 0.51",
			Notes: []string{"The time counts from the loss of the Lease to the last object."},
		},
		{
			ID: apiServerRow, Title: "API server CPU per moved object", Unit: "ms", Values: server,
			FloorTitle: "same raw PATCH", Floor: rawServer, Target: result.Max(1.2), PriorArt: "3.0 / 1.7",
			Notes: []string{countedTo},
		},
		{
			ID: rebalancerRow, Title: "rebalancer CPU per moved object", Unit: "ms", Values: own,
			Target: result.Max(0.2), PriorArt: "0.68 / 0.48 ms", Notes: []string{countedTo},
		},
		{
			ID: joinRow, Title: "join: objects drained and released to the new shard per second, " + with, Unit: "objects/s",
			Values:     result.Column(all, func(r filled.Round) float64 { return r.Joined.Rate }),
			FloorTitle: "two raw PATCHes per object",
			Floor:      result.Column(all, func(r filled.Round) float64 { return r.Least.Rate / 2 }),
			Target:     result.Min(0.9), PriorArt: "0.36 / 0.64",
			Notes: []string{"The drain label names the next shard, and the shard that releases the object writes this name " +
				"into its shard label. No other write is necessary."},
		},
		{
			ID: manyRow, Title: fmt.Sprintf("objects moved per second after the death of %d of %s shards", e.dying(),
				result.Number(float64(e.size))), Unit: "objects/s", Values: rates,
			FloorTitle: patch + ", after two PATCHes of each Lease that is lost", Floor: raw, Target: result.Min(0.8),
		},
	} {
		if slices.Contains(e.rows, row.ID) {
			b.Report(row)
		}
	}
}
