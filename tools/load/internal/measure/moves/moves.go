// Package moves measures what moving objects takes: away from a shard that has died, to one that has joined, and how soon it begins.
// The floor is the same number of raw patches of metadata, as the rebalancer sends them.
package moves

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/clusterring/clusterring/tools/load/internal/figure"
	"github.com/clusterring/clusterring/tools/load/internal/measure/world"
	"github.com/clusterring/clusterring/tools/load/internal/result"
	"github.com/clusterring/clusterring/tools/load/internal/run"
)

const (
	deathRow     = "moves-death"
	apiServerRow = "moves-death-apiserver"
	cpuRow       = "moves-death-rebalancer"
	passRow      = "moves-pass"
	joinRow      = "moves-join"
	firstRow     = "moves-release-first"
	thousandRow  = "moves-release-thousand"

	manyRow = "moves-many-shards"

	rateSeries      = "moves-by-shards"
	apiServerSeries = "moves-apiserver-by-shards"
	cpuSeries       = "moves-rebalancer-by-shards"

	// threeShards is how many shards there are in the rows; a thousand is how many objects one of them has, or more, of few.
	threeShards, thousand, few = 3, 1000, 3300
	// threeHundred is how many shards die at most.
	threeHundred = 300

	patch     = "raw metadata PATCH, same concurrency"
	countedTo = "CPU counts until the last object has moved. The pass over all objects that follows has a row of its own."
)

// Measurements returns what this package measures.
func Measurements() []run.Measurement {
	return []run.Measurement{
		{
			Name: "moves", IDs: []string{deathRow, apiServerRow, cpuRow, passRow, joinRow, firstRow, thousandRow},
			Budget: map[run.Scale]time.Duration{run.Small: 40 * time.Second, run.Full: 250 * time.Second}, Run: three,
		},
		{
			Name: "moves-by-shards", IDs: []string{manyRow, rateSeries, apiServerSeries, cpuSeries},
			Budget: map[run.Scale]time.Duration{run.Small: 15 * time.Second, run.Full: 150 * time.Second}, Run: byShards,
		},
	}
}

// turnaround is a death and a join.
type turnaround struct{ death, join world.Cost }

func (t turnaround) String() string { return fmt.Sprintf("death: %v; join: %v", t.death, t.join) }

// three measures with three shards.
func three(ctx context.Context, b *run.Bench) (rows []result.Row, series []result.Series, err error) {
	w, err := world.Open(ctx, b, "load-moves", threeShards)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, w.Close(context.WithoutCancel(ctx))) }()

	if err := w.Grow(ctx, few); err != nil {
		return nil, nil, err
	}

	const parts = 3
	if b.Wants(firstRow, thousandRow) {
		if rows, err = release(ctx, b.Share(parts), w); err != nil {
			return nil, nil, err
		}
	}

	if !b.Wants(deathRow, apiServerRow, cpuRow, passRow, joinRow) {
		return rows, nil, nil
	}

	if err := w.Grow(ctx, run.Pick(b, few, 10_000)); err != nil {
		return nil, nil, err
	}

	values, floors, err := run.Rounds(ctx, b, func(ctx context.Context) (turnaround, error) { return turn(ctx, w, 1) }, func(ctx context.Context) (turnaround, error) {
		return floor(ctx, w, 1)
	})
	if err != nil {
		return nil, nil, err
	}

	return append(rows, rowsOf(w.Objects(), values, floors)...), nil, nil
}

// turn has n shards die and as many join.
func turn(ctx context.Context, w *world.World, n int) (t turnaround, err error) {
	if t.death, err = w.Die(ctx, n); err != nil {
		return t, fmt.Errorf("death: %w", err)
	}

	if t.join, err = w.Join(ctx, n); err != nil {
		return t, fmt.Errorf("join: %w", err)
	}

	return t, nil
}

// floor patches the objects of n shards: once, as in a death, and twice, as in a join.
func floor(ctx context.Context, w *world.World, n int) (t turnaround, err error) {
	if t.death, err = w.Raw(ctx, n, 0); err != nil {
		return t, err
	}

	second, err := w.Raw(ctx, n, 0)
	if err != nil {
		return t, err
	}

	t.join = t.death.Plus(second)

	return t, nil
}

func rowsOf(objects int, values, floors []turnaround) []result.Row {
	death := func(t turnaround) world.Cost { return t.death }
	join := func(t turnaround) world.Cost { return t.join }
	of := func(list []turnaround, which func(turnaround) world.Cost, what func(world.Cost) float64) []float64 {
		return result.Column(list, func(t turnaround) float64 { return what(which(t)) })
	}
	with := fmt.Sprintf("%d objects, %d shards", objects, threeShards)

	return []result.Row{
		{
			ID: deathRow, Title: "objects moved per second after a shard's death, " + with, Unit: "objects/s",
			Values: of(values, death, rateOf), FloorTitle: patch, Floor: of(floors, death, rateOf), Judge: result.JudgeRatio,
			Target: result.Target{Bound: result.AtLeast, Value: 0.85, Unit: "×"}, PriorArt: "0.21 / 0.51",
			Notes: []string{"The time counts from the loss of the Lease to the last object."},
		},
		{
			ID: apiServerRow, Title: "API server CPU per moved object", Unit: "ms",
			Values: of(values, death, apiServerOf), FloorTitle: "same raw PATCH", Floor: of(floors, death, apiServerOf), Judge: result.JudgeRatio,
			Target: result.Target{Bound: result.AtMost, Value: 1.2, Unit: "×"}, PriorArt: "3.0 / 1.7", Notes: []string{countedTo},
		},
		{
			ID: cpuRow, Title: "rebalancer CPU per moved object", Unit: "ms",
			Values: of(values, death, rebalancerOf), Judge: result.JudgeValue,
			Target: result.Target{Bound: result.AtMost, Value: 0.2, Unit: "ms"}, PriorArt: "0.68 / 0.48 ms", Notes: []string{countedTo},
		},
		{
			ID: passRow, Title: "once after a change of shards: a pass over all objects, CPU of API server and rebalancer per object of the ring", Unit: "µs",
			Values: of(values, death, func(c world.Cost) float64 { return c.Pass }), Judge: result.JudgeValue,
			Notes: []string{"When nothing has changed for a while, the rebalancer makes sure that no replica of the assigner has placed an object by older shards."},
		},
		{
			ID: joinRow, Title: "join: objects drained and given up to the new shard per second, " + with, Unit: "objects/s",
			Values: of(values, join, rateOf), FloorTitle: "two raw PATCHes per object", Floor: of(floors, join, rateOf), Judge: result.JudgeRatio,
			Target: result.Target{Bound: result.AtLeast, Value: 0.9, Unit: "×"}, PriorArt: "0.36 / 0.64",
			Notes: []string{"The drain names the shard that comes next, and who gives the object up writes that name: nobody else is asked."},
		},
	}
}

// release measures how soon objects move after their shard has released its Lease.
func release(ctx context.Context, b *run.Bench, w *world.World) ([]result.Row, error) {
	values, floors, err := run.Rounds(ctx, b, func(ctx context.Context) (world.Cost, error) {
		c, err := w.Release(ctx, thousand)
		if err == nil && c.Mark == 0 {
			err = fmt.Errorf("only %d objects had to move", c.Moved)
		}

		if err == nil {
			_, err = w.Join(ctx, 1)
		}

		return c, err
	}, func(ctx context.Context) (world.Cost, error) { return w.Raw(ctx, 1, thousand) })
	if err != nil {
		return nil, fmt.Errorf("release: %w", err)
	}

	of := result.Column[world.Cost]
	first := func(c world.Cost) float64 { return c.First }
	mark := func(c world.Cost) float64 { return c.Mark }

	return []result.Row{
		{
			ID: firstRow, Title: "time from a Lease's release to the first moved object", Unit: "s",
			Values: of(values, first), FloorTitle: "the first of as many raw PATCHes", Floor: of(floors, first), Judge: result.JudgeValue,
			Target: result.Target{Bound: result.AtMost, Value: 0.1, Unit: "s"}, PriorArt: "0.33 s",
		},
		{
			ID: thousandRow, Title: "and to the last of 1,000", Unit: "s",
			Values: of(values, mark), FloorTitle: "1,000 raw PATCHes", Floor: of(floors, mark), Judge: result.JudgeValue,
			Target: result.Target{Bound: result.AtMost, Value: 1, Unit: "s"},
		},
	}, nil
}

// byShards measures deaths with more and more shards: a third of them dies each time.
func byShards(ctx context.Context, b *run.Bench) (rows []result.Row, series []result.Series, err error) {
	sizes := run.Pick(b, []int{3, 30}, []int{3, 10, 30, 100, 300, 1000})
	rate := result.Series{ID: rateSeries, Title: "Objects moved per second after the death of a third of the shards", Over: result.OverShards, Unit: "objects/s"}
	apiServer := result.Series{ID: apiServerSeries, Title: "API server CPU per moved object", Over: result.OverShards, Unit: "ms"}
	cpu := result.Series{ID: cpuSeries, Title: "Rebalancer CPU per moved object", Over: result.OverShards, Unit: "ms"}

	for i, size := range sizes {
		values, floors, err := atSize(ctx, b.Share(len(sizes)-i).More(i == len(sizes)-1), size)
		if err != nil {
			return nil, nil, fmt.Errorf("%d shards: %w", size, err)
		}

		if i == len(sizes)-1 {
			rows = append(rows, rowOfMany(size, values, floors))
		}

		x := float64(size)
		rate.Points = append(rate.Points, result.Point{X: x, Values: result.Column(values, rateOf), Floor: result.Column(floors, rateOf)})
		apiServer.Points = append(apiServer.Points, result.Point{X: x, Values: result.Column(values, apiServerOf), Floor: result.Column(floors, apiServerOf)})
		cpu.Points = append(cpu.Points, result.Point{X: x, Values: result.Column(values, rebalancerOf)})
	}

	return rows, []result.Series{rate, apiServer, cpu}, nil
}

// dying is how many of so many shards die: a third, but not more than 300.
func dying(size int) int { return min(size/threeShards, threeHundred) }

func rowOfMany(size int, values, floors []world.Cost) result.Row {
	return result.Row{
		ID: manyRow, Title: fmt.Sprintf("objects moved per second after the death of %d of %s shards", dying(size), figure.Number(float64(size))),
		Unit: "objects/s", FloorTitle: patch, Judge: result.JudgeRatio, Target: result.Target{Bound: result.AtLeast, Value: 0.85, Unit: "×"},
		Values: result.Column(values, rateOf), Floor: result.Column(floors, rateOf),
	}
}

func rateOf(c world.Cost) float64       { return c.Rate }
func apiServerOf(c world.Cost) float64  { return c.APIServer }
func rebalancerOf(c world.Cost) float64 { return c.Rebalancer }

// atSize makes a ring of so many shards, and measures one death: after that the ring is another one.
func atSize(ctx context.Context, b *run.Bench, size int) (values, floors []world.Cost, err error) {
	w, err := world.Open(ctx, b, "load-shards", size)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, w.Close(context.WithoutCancel(ctx))) }()

	if err := w.Grow(ctx, run.Pick(b, 1000, 6000)); err != nil {
		return nil, nil, err
	}

	least, err := w.Raw(ctx, dying(size), 0)
	if err != nil {
		return nil, nil, err
	}

	c, err := w.Die(ctx, dying(size))
	if err != nil {
		return nil, nil, err
	}
	b.Progress("%d shards: %v; floor: %v", size, c, least)

	return []world.Cost{c}, []world.Cost{least}, nil
}
