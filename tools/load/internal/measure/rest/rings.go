package rest

import (
	"context"
	"fmt"

	"github.com/clusterring/clusterring/tools/load/internal/figure"
	"github.com/clusterring/clusterring/tools/load/internal/measure/filled"
	"github.com/clusterring/clusterring/tools/load/internal/result"
	"github.com/clusterring/clusterring/tools/load/internal/run"
)

const (
	ringsCPURow      = "rings-rest-cpu"
	ringsRequestsRow = "rings-rest-requests"
	ringsDeathRow    = "rings-death"
	ringsMoveRow     = "rings-death-rebalancer"
	ringsFairRow     = "rings-fair"

	// ringShards is the number of shards of each of many rings, ringObjects that of its objects.
	ringShards, ringObjects = 3, 300
)

// crowded measures with many rings: at rest, and when a shard dies in each.
func crowded(ctx context.Context, b *run.Bench) error {
	count := run.Pick(b, 10, 100)

	alone, err := windows(ctx, b)
	if err != nil {
		return err
	}

	crowd, err := filled.OpenCrowd(ctx, b, filled.Size{Rings: count, Shards: ringShards, Objects: ringObjects})
	if err != nil {
		return err
	}

	together, err := windows(ctx, b)
	if err != nil {
		return err
	}

	perRing := func(of func(sample) float64) []float64 {
		values := column(together, of)
		for i, none := range column(alone, of) {
			values[i] = (values[i] - none) / float64(count)
		}

		return values
	}
	title := fmt.Sprintf("the services at rest with %d rings of %d shards: ", count, ringShards)
	notes := []string{"The sum of all four services, minus what they use without a ring, per ring. Each ring is audited once a minute."}
	b.Report(
		result.Row{ID: ringsCPURow, Title: title + "CPU per ring", Unit: "ms/s", Values: perRing(cpuOf), Target: result.Max(0.1), Notes: notes},
		result.Row{
			ID: ringsRequestsRow, Title: title + "requests to the API server per ring", Unit: "requests/s", Values: perRing(requestsOf),
			Target: result.Max(0.05), Notes: notes,
		},
	)

	if !b.Wants(ringsDeathRow, ringsMoveRow) {
		return nil
	}

	least, err := crowd.Raw(ctx)
	if err != nil {
		return err
	}

	died, err := crowd.Die(ctx)
	if err != nil {
		return err
	}
	b.Progress("%d rings, a death in each: %v; floor: %v", count, died, least)
	b.Report(
		result.Row{
			ID: ringsDeathRow, Title: fmt.Sprintf("objects moved per second when a shard dies in each of %d rings", count), Unit: "objects/s",
			Values: []float64{died.Rate}, FloorTitle: "raw metadata PATCH, as many at a time as of one ring", Floor: []float64{least.Rate},
			Target: result.Min(0.85),
			Notes:  []string{fmt.Sprintf("The time counts from the loss of the first Lease to the last object: the shards lose the %d Leases one after another.", count)},
		},
		result.Row{
			ID: ringsMoveRow, Title: fmt.Sprintf("rebalancer CPU per moved object, %d rings", count), Unit: "ms",
			Values: []float64{died.Rebalancer}, Target: result.Max(0.2),
		},
	)

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
