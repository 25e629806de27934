package continuity

import (
	"context"
	"fmt"
	"time"

	"github.com/clusterring/clusterring/tools/lab/continuity"
	"github.com/clusterring/clusterring/tools/load/internal/result"
	"github.com/clusterring/clusterring/tools/load/internal/run"
	"github.com/clusterring/clusterring/tools/load/internal/shards"
	"github.com/clusterring/clusterring/tools/load/internal/target"
	"github.com/clusterring/clusterring/tools/testkit/record"
)

const (
	// slowWork is how long a reconcile of an overloaded shard takes, with fewWorkers.
	slowWork   = 200 * time.Millisecond
	fewWorkers = 5
	// solo is the Pod that has all objects at first.
	solo = "pod-0"
)

// relief is what happens when a second shard joins one that has all objects.
type relief struct {
	// took is how many seconds it takes from the start of the second process until it has half of the objects.
	took float64
}

func (r relief) String() string { return fmt.Sprintf("%.1f s", r.took) }

// reliefMeasurement measures how soon a second shard relieves an overloaded one. The floor is a first shard that has no work.
func reliefMeasurement() run.Measurement {
	notes := []string{fmt.Sprintf("10,000 Websites with a ConfigMap each, 1,000 at a small scale. All of them are queued in the first shard. A controller has %d workers, and a reconcile takes %s: "+
		"a shard works on at most %.0f Websites per second. The time counts from the start of the second shard's process to the last of its objects.",
		fewWorkers, slowWork, fewWorkers/slowWork.Seconds())}

	part := run.Compare([]run.Figure[relief]{{Row: result.Row{
		ID: "relief-time", Title: "time until a second shard has half of the objects of a shard whose queue is full", Unit: "s",
		FloorTitle: "the first shard has no work", Judge: result.JudgeValue, Target: result.Max(60), Notes: notes,
	}, Of: func(r relief) float64 { return r.took }}}, func(ctx context.Context, b *run.Bench) (busy, idle run.Trial[relief], err error) {
		c, err := gather(ctx, b, scenario{id: "relief", shards: 1, crowd: 10})
		if err != nil {
			return nil, nil, err
		}

		c.scenario.work, c.scenario.workers = slowWork, fewWorkers

		return func(ctx context.Context) (relief, error) { return c.relieve(ctx, slowWork) },
			func(ctx context.Context) (relief, error) { return c.relieve(ctx, 0) }, nil
	})

	return run.Measurement{Name: "relief", Small: 90 * time.Second, Full: 6 * time.Minute, Parts: []run.Part{part}}
}

// relieve restarts the first shard, which queues all of its objects, with reconciles that take so long, and lets another one join. If they take no
// time, it waits until the queue is empty. In the end, the other one is gone.
func (c *crew) relieve(ctx context.Context, work time.Duration) (r relief, err error) {
	first := c.full(solo)

	err = c.bench.Local.Restart(ctx, first, fmt.Sprintf("--concurrency=%d", fewWorkers), "--work-duration="+work.String())
	if err != nil {
		return r, err
	}

	err = c.fleet.AwaitConvergedAmong(ctx, 1, "")
	if err == nil && work == 0 {
		err = target.Until(ctx, "the queues of the first shard are empty", func(ctx context.Context) (bool, error) {
			depth, err := c.bench.System.Metric(ctx, first, "workqueue_depth")
			return depth == 0, err
		})
	}

	if err != nil {
		return r, err
	}

	before, err := c.fleet.Read(ctx)
	if err != nil {
		return r, err
	}

	from := record.Now()
	c.joined++
	second := fmt.Sprintf("pod-%d", c.joined)

	if err := c.start(ctx, second); err != nil {
		return r, err
	}

	if err := c.fleet.AwaitConvergedAmong(ctx, 2, shards.Fingerprint(before)); err != nil {
		return r, err
	}

	versions, err := c.recorder.Versions()
	if moves := continuity.Of(versions, from, record.Now()).Moves; err == nil && len(moves) > 0 {
		r.took = moves[len(moves)-1].Seconds()
	}

	if err == nil {
		err = c.fail(ctx, second)
	}

	if err == nil {
		err = c.fleet.AwaitConvergedAmong(ctx, 1, "")
	}

	return r, err
}
