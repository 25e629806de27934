// Package relief measures how soon a second shard relieves an overloaded one. The shards are processes of the example
// controller.
package relief

import (
	"context"
	"fmt"
	"time"

	"github.com/clusterring/clusterring/tools/lab/continuity"
	"github.com/clusterring/clusterring/tools/load/internal/crew"
	"github.com/clusterring/clusterring/tools/load/internal/objects"
	"github.com/clusterring/clusterring/tools/load/internal/result"
	"github.com/clusterring/clusterring/tools/load/internal/run"
	"github.com/clusterring/clusterring/tools/load/internal/shards"
	"github.com/clusterring/clusterring/tools/testkit/record"
)

const (
	reliefRow = "relief-time"
	// slowWork is how long a reconcile of an overloaded shard takes, with fewWorkers.
	slowWork   = 200 * time.Millisecond
	fewWorkers = 5
	// solo is the Pod that has all objects at first.
	solo = "pod-0"
)

// args are the arguments of shards whose reconciles take so long.
func args(work time.Duration) []string {
	return []string{"--work-duration=" + work.String(), fmt.Sprintf("--concurrency=%d", fewWorkers)}
}

// Measurements returns what this package measures.
func Measurements() []run.Measurement {
	return []run.Measurement{{
		Name: "relief", Small: 90 * time.Second, Full: 6 * time.Minute,
		Parts: []run.Part{{Rows: []string{reliefRow}, Run: relief}},
	}}
}

// relief measures how soon a second shard relieves an overloaded one. The floor is a first shard that has no work.
func relief(ctx context.Context, b *run.Bench) error {
	c, err := crew.Gather(ctx, b, crew.Options{
		Name: "relief", Shards: 1, Websites: run.Pick(b, 1000, 10_000), Args: args(slowWork),
	})
	if err != nil {
		return err
	}

	note := fmt.Sprintf("10,000 Websites with a ConfigMap each, 1,000 at a small scale. All of them are "+
		"queued in the first shard. A controller has %d workers, and a reconcile takes %s: "+
		"a shard works on at most %.0f Websites per second. The time counts from the start of the second shard's process "+
		"to the last of its objects.", fewWorkers, slowWork, fewWorkers/slowWork.Seconds())

	return run.Compare(ctx, b, run.Sides[float64]{
		Value: func(ctx context.Context) (float64, error) { return relieve(ctx, b, c, slowWork) },
		Floor: func(ctx context.Context) (float64, error) { return relieve(ctx, b, c, 0) },
	}, run.Figure[float64]{Row: result.Row{
		ID: reliefRow, Title: "time until a second shard has half of the objects of a shard whose queue is full", Unit: "s",
		FloorTitle: "the first shard has no work", Judge: result.JudgeValue, Target: result.Max(60), Notes: []string{note},
	}, Of: run.Itself})
}

// relieve restarts the first shard of a crew, which queues all of its objects, with reconciles that take so long, and
// lets another one join. If they take no time, it waits until the queue is empty. It returns how many seconds it takes
// until the other one has half of the objects. In the end, that one is gone.
func relieve(ctx context.Context, b *run.Bench, c *crew.Crew, work time.Duration) (took float64, err error) {
	first := c.Full(solo)

	err = b.Local.Restart(ctx, first, args(work)...)
	if err != nil {
		return 0, err
	}

	err = c.Fleet.AwaitConvergedAmong(ctx, 1, "")
	if err == nil && work == 0 {
		err = objects.Until(ctx, "the queues of the first shard are empty", func(ctx context.Context) (bool, error) {
			depth, err := b.Local.Metric(ctx, first, "workqueue_depth")
			return depth == 0, err
		})
	}

	if err != nil {
		return 0, err
	}

	before, err := c.Fleet.Read(ctx)
	if err != nil {
		return 0, err
	}

	from, second := record.Now(), c.Next()

	if err := c.Start(ctx, second); err != nil {
		return 0, err
	}

	if err := c.Fleet.AwaitConvergedAmong(ctx, 2, shards.Fingerprint(before)); err != nil {
		return 0, err
	}

	versions, err := c.Recorder.Versions()
	if err != nil {
		return 0, err
	}

	if moves := continuity.Of(versions, from, record.Now()).Moves; len(moves) > 0 {
		took = moves[len(moves)-1].Seconds()
	}

	if err := c.Fail(ctx, second); err != nil {
		return 0, err
	}

	return took, c.Fleet.AwaitConvergedAmong(ctx, 1, "")
}
