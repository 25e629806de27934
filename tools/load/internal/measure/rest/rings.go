package rest

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
	ringsCPURow      = "rings-rest-cpu"
	ringsRequestsRow = "rings-rest-requests"
	ringsDeathRow    = "rings-death"
	ringsMoveRow     = "rings-death-rebalancer"
	ringsFairRow     = "rings-fair"

	// ringShards is how many shards each of many rings has.
	ringShards = 3
)

func manyRings() run.Measurement {
	return run.Measurement{
		Name: "many-rings", IDs: []string{ringsCPURow, ringsRequestsRow, ringsDeathRow, ringsMoveRow, ringsFairRow},
		Budget: map[run.Scale]time.Duration{run.Small: 30 * time.Second, run.Full: 120 * time.Second}, Run: rings,
	}
}

// rings measures with many rings: at rest, when a shard dies in each, and whether a small one waits for a large one.
func rings(ctx context.Context, b *run.Bench) (rows []result.Row, series []result.Series, err error) {
	const parts = 2
	if b.Wants(ringsCPURow, ringsRequestsRow, ringsDeathRow, ringsMoveRow) {
		if rows, err = crowded(ctx, b.Share(parts)); err != nil {
			return nil, nil, err
		}
	}

	if b.Wants(ringsFairRow) {
		row, err := fairness(ctx, b)
		if err != nil {
			return nil, nil, err
		}

		rows = append(rows, row)
	}

	return rows, nil, nil
}

func crowded(ctx context.Context, b *run.Bench) (rows []result.Row, err error) {
	count, each := run.Pick(b, 10, 100), 300

	alone, err := atRestNow(ctx, b)
	if err != nil {
		return nil, err
	}

	crowd, err := world.OpenCrowd(ctx, b, world.Size{Name: "load-rings", Rings: count, Shards: ringShards})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, crowd.Close(context.WithoutCancel(ctx))) }()

	if err := crowd.Grow(ctx, each); err != nil {
		return nil, err
	}

	together, err := atRestNow(ctx, b)
	if err != nil {
		return nil, err
	}

	var values, floors []world.Cost

	if b.Wants(ringsDeathRow, ringsMoveRow) {
		least, err := crowd.Raw(ctx)
		if err != nil {
			return nil, err
		}

		died, err := crowd.Die(ctx)
		if err != nil {
			return nil, err
		}
		b.Progress("%d rings, a death in each: %v; floor: %v", count, died, least)
		values, floors = []world.Cost{died}, []world.Cost{least}
	}

	return append(ringRestRows(count, alone, together), ringDeathRows(count, values, floors)...), nil
}

// atRestNow returns what the services use while nothing happens, one sample per window.
func atRestNow(ctx context.Context, b *run.Bench) (all []sample, err error) {
	for range run.Pick(b, 2, 3) {
		one, apart, err := (&growth{bench: b}).look(ctx, run.Pick(b, 2*time.Second, 10*time.Second))
		if err != nil {
			return nil, err
		}
		b.Progress("at rest: %s", describe(apart))

		all = append(all, one)
	}

	return all, nil
}

func ringRestRows(count int, alone, together []sample) []result.Row {
	per := func(what func(sample) float64) (values []float64) {
		for i := range together {
			values = append(values, (what(together[i])-what(alone[i]))/float64(count))
		}

		return values
	}
	title := fmt.Sprintf("the services at rest with %d rings of %d shards: ", count, ringShards)
	note := "Of all four services, less what they use without a ring, per ring. Each ring is audited once a minute."

	return []result.Row{
		{
			ID: ringsCPURow, Title: title + "CPU per ring", Unit: "ms/s", Values: per(func(s sample) float64 { return s.cpu }),
			Judge: result.JudgeValue, Target: result.Target{Bound: result.AtMost, Value: 0.1, Unit: "ms/s"}, Notes: []string{note},
		},
		{
			ID: ringsRequestsRow, Title: title + "requests to the API server per ring", Unit: "requests/s", Values: per(func(s sample) float64 { return s.requests }),
			Judge: result.JudgeValue, Target: result.Target{Bound: result.AtMost, Value: 0.05, Unit: "requests/s"}, Notes: []string{note},
		},
	}
}

func ringDeathRows(count int, values, floors []world.Cost) []result.Row {
	of := result.Column[world.Cost]
	rate := func(c world.Cost) float64 { return c.Rate }

	return []result.Row{
		{
			ID: ringsDeathRow, Title: fmt.Sprintf("objects moved per second when a shard dies in each of %d rings", count), Unit: "objects/s",
			Values: of(values, rate), FloorTitle: "raw metadata PATCH, as many at a time as of one ring", Floor: of(floors, rate), Judge: result.JudgeRatio,
			Target: result.Target{Bound: result.AtLeast, Value: 0.85, Unit: "×"},
			Notes:  []string{"The time counts from the loss of the first Lease to the last object: the " + figure.Number(float64(count)) + " Leases are lost one after another."},
		},
		{
			ID: ringsMoveRow, Title: fmt.Sprintf("rebalancer CPU per moved object, %d rings", count), Unit: "ms",
			Values: of(values, func(c world.Cost) float64 { return c.Rebalancer }), Judge: result.JudgeValue,
			Target: result.Target{Bound: result.AtMost, Value: 0.2, Unit: "ms"},
		},
	}
}

// fairness measures whether the only object of a ring waits for the many of another.
func fairness(ctx context.Context, b *run.Bench) (row result.Row, err error) {
	// Each turn costs a shard of either, and has the objects of that one move.
	large, err := world.Open(ctx, b, "load-large", shardCount)
	if err != nil {
		return row, err
	}
	defer func() { err = errors.Join(err, large.Close(context.WithoutCancel(ctx))) }()

	small, err := world.Open(ctx, b, "load-single", shardCount)
	if err != nil {
		return row, err
	}

	defer func() { err = errors.Join(err, small.Close(context.WithoutCancel(ctx))) }()

	many := run.Pick(b, 3000, 20_000)
	if err := errors.Join(large.Grow(ctx, many), small.Grow(ctx, 1)); err != nil {
		return row, err
	}

	alone := func(ctx context.Context) (float64, error) {
		took, err := small.Orphan(ctx, nil)
		if err == nil {
			err = small.AwaitConverged(ctx, "")
		}

		return took.Seconds(), err
	}
	values, floors, err := run.Rounds(ctx, b, func(ctx context.Context) (took float64, err error) {
		_, err = large.Orphan(ctx, func(ctx context.Context) error {
			took, err = alone(ctx)
			return err
		})
		if err == nil {
			err = large.AwaitConverged(ctx, "")
		}

		return took, err
	}, alone)

	return result.Row{
		ID: ringsFairRow, Title: fmt.Sprintf("time until the only object of a ring has moved, while another ring moves %s or more", figure.Number(float64(many/shardCount))),
		Unit: "s", Values: values, FloorTitle: "while nothing else happens", Floor: floors, Judge: result.JudgeValue,
		Target: result.Target{Bound: result.AtMost, Value: 0.5, Unit: "s"},
	}, err
}
