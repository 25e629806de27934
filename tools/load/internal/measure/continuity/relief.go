package continuity

import (
	"context"
	"fmt"
	"time"

	"github.com/clusterring/clusterring/tools/lab/continuity"
	"github.com/clusterring/clusterring/tools/lab/record"
	"github.com/clusterring/clusterring/tools/load/internal/result"
	"github.com/clusterring/clusterring/tools/load/internal/run"
	"github.com/clusterring/clusterring/tools/load/internal/shards"
	"github.com/clusterring/clusterring/tools/load/internal/target"
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
	// took is how many seconds it takes from the start of the second process until it has half of the objects, first and second how many Websites
	// the shards work on per second meanwhile.
	took, first, second float64
}

func (r relief) String() string {
	return fmt.Sprintf("%.1f s; %.1f/s by the first shard, %.1f/s by the second", r.took, r.first, r.second)
}

// reliefMeasurement measures how soon a second shard relieves an overloaded one. The floor is a first shard that has no work.
func reliefMeasurement() run.Measurement {
	notes := []string{fmt.Sprintf("10,000 Websites with a ConfigMap each, 1,000 at a small scale. All of them are queued in the first shard. A controller has %d workers, and a reconcile takes %s: "+
		"a shard works on at most %.0f Websites per second. The time counts from the start of the second shard's process to the last of its objects.",
		fewWorkers, slowWork, fewWorkers/slowWork.Seconds())}
	full := "time until a second shard has half of the objects of a shard whose queue is full"
	took := func(r relief) float64 { return r.took }

	part := run.Compare([]run.Figure[relief]{
		{Row: result.Row{ID: "relief-ratio", Title: full, Unit: "s", FloorTitle: "the first shard has no work", Target: result.Max(1.5), Notes: notes}, Of: took},
		{Row: result.Row{ID: "relief-time", Title: full + ", in seconds", Unit: "s", Target: result.Max(60)}, Of: took},
		{Row: result.Row{ID: "relief-first", Title: "Websites that the first shard works on meanwhile", Unit: "objects/s"}, Of: func(r relief) float64 { return r.first }},
		{Row: result.Row{ID: "relief-second", Title: "Websites that the second shard works on meanwhile", Unit: "objects/s"}, Of: func(r relief) float64 { return r.second }},
	}, func(ctx context.Context, b *run.Bench) (busy, idle run.Trial[relief], err error) {
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

	done, err := c.reconciles(ctx, first)
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

	period := (record.Now() - from).Seconds()

	for pod, rate := range map[string]*float64{first: &r.first, c.full(second): &r.second} {
		if *rate, err = c.reconciles(ctx, pod); err != nil {
			return r, err
		}
	}

	r.first, r.second = (r.first-done)/period, r.second/period

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

// reconciles returns how many reconciles of Websites a shard has finished that took as long as those of an overloaded shard. Others have found
// that the object was not the shard's any more.
func (c *crew) reconciles(ctx context.Context, pod string) (float64, error) {
	const metric, website = "controller_runtime_reconcile_time_seconds", `controller="website"`

	all, err := c.bench.System.Metric(ctx, pod, metric+"_count", website)
	if err != nil {
		return 0, err
	}

	short, err := c.bench.System.Metric(ctx, pod, metric+"_bucket", website, `le="0.15"`)

	return all - short, err
}
