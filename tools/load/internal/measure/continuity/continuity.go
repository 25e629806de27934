// Package continuity measures what changes of shards cost users: how many objects move in rollouts, when Pods come and
// go, and when they crash, and how long the work on objects that users change meanwhile takes. The shards are processes
// of the example controller, with the identities of Pods.
package continuity

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

// scenario is something that happens to the shards of a ring.
type scenario struct {
	id, title string
	// slots is how many slots there are; 0 if shards have the names of their Pods.
	slots int
	// shards is how many there are at first, then how many there are in the end. They have the names pod-0, pod-1, and so
	// on.
	shards, then int
	play         func(context.Context, *crew.Crew) error
	// late limits the 99th percentile of the work on changes, in seconds: 0 for no limit.
	late float64
	// full is true if the scenario is not played at a small scale.
	full bool
}

const (
	// shardsAtFirst is the number of shards of most scenarios.
	shardsAtFirst = 5
	// work is the time that a reconcile takes in addition, and concurrency how many objects a controller works on at a
	// time.
	work        = 20 * time.Millisecond
	concurrency = 50
)

// args are the arguments of shards whose reconciles take so long, with so many workers.
func args(work time.Duration, workers int) []string {
	return []string{"--work-duration=" + work.String(), fmt.Sprintf("--concurrency=%d", workers)}
}

// scenarios are in the order of the report.
var scenarios = []scenario{
	{
		id: "deployment", full: true, title: "rolling update of a Deployment, shards named like their Pods",
		shards: shardsAtFirst, then: shardsAtFirst, play: rollout,
	},
	{
		id: "slots", title: "rolling update of a Deployment with slots", slots: shardsAtFirst, shards: shardsAtFirst,
		then: shardsAtFirst, play: rollout,
		late: 1.5,
	},
	{
		id: "up", full: true, title: "3 shards become 5", slots: shardsAtFirst, shards: 3, then: shardsAtFirst,
		play: func(ctx context.Context, c *crew.Crew) error { return c.Start(ctx, "pod-3", "pod-4") },
	},
	{
		id: "down", full: true, title: "5 shards become 2", slots: shardsAtFirst, shards: shardsAtFirst, then: 2,
		play: func(ctx context.Context, c *crew.Crew) error { return c.End("pod-2", "pod-3", "pod-4") },
	},
	{
		id: "crash", title: "a Pod crashes, Leases of 15 s", full: true, slots: shardsAtFirst, shards: shardsAtFirst,
		then: shardsAtFirst - 1,
		play: func(_ context.Context, c *crew.Crew) error { return c.Crash("pod-0") },
	},
	{
		id: "word", title: "a Pod crashes, and the kubelet reports its end", slots: shardsAtFirst, shards: shardsAtFirst,
		then: shardsAtFirst - 1,
		play: func(ctx context.Context, c *crew.Crew) error { return c.Fail(ctx, "pod-0") },
	},
	{
		id: "standby", title: "a Pod crashes, the kubelet reports its end, and another Pod waits for a slot",
		slots: shardsAtFirst, shards: shardsAtFirst + 1,
		then: shardsAtFirst, play: func(ctx context.Context, c *crew.Crew) error { return c.Fail(ctx, "pod-0") }, late: 1.5,
	},
	{
		id: "node", title: "a node with 2 of 5 Pods is lost, Leases of 15 s", full: true, slots: shardsAtFirst,
		shards: shardsAtFirst, then: 3,
		play: func(_ context.Context, c *crew.Crew) error { return c.Crash("pod-0", "pod-1") },
	},
}

// row returns the id of the scenario's row.
func (s scenario) row() string { return "continuity-" + s.id }

// Measurements returns what this package measures.
func Measurements() []run.Measurement {
	m := run.Measurement{Name: "continuity", Small: 90 * time.Second, Full: 8 * time.Minute}
	for _, s := range scenarios {
		m.Parts = append(m.Parts, run.Part{Name: s.title, Rows: []string{s.row()}, NotSmall: s.full, Run: s.measure})
	}

	return []run.Measurement{m, {
		Name: "relief", Small: 90 * time.Second, Full: 6 * time.Minute,
		Parts: []run.Part{{Rows: []string{reliefRow}, Run: relief}},
	}}
}

// measure plays the scenario once: each change leaves another ring behind.
func (s scenario) measure(ctx context.Context, b *run.Bench) error {
	c, err := crew.Gather(ctx, b, crew.Options{
		Name: s.id, Shards: s.shards, Slots: s.slots, Websites: run.Pick(b, 100, 1000), Args: args(work, concurrency),
	})
	if err != nil {
		return err
	}

	r, err := c.Observe(ctx, func() error { return s.play(ctx, c) }, s.then)
	if err != nil {
		return err
	}

	b.Progress("%s: %v", s.title, r)

	const late, worst = 0.99, 1

	row := result.Row{
		ID: s.row(), Title: s.title + ": time from a change of an object until the work on it is done, 99th percentile",
		Unit:   "s",
		Values: []float64{r.Quantile(late).Seconds()}, Notes: []string{fmt.Sprintf(
			"%d of %d objects moved: Websites and their ConfigMaps. The longest took %.1f s. Users change %d Websites per "+
				"second, and a reconcile takes %s.",
			len(r.Moves), 2*c.Sites.Count, r.Quantile(worst).Seconds(), crew.Edits, work)},
	}
	if s.late > 0 {
		row.Target = result.Max(s.late)
	}
	b.Report(row)

	return nil
}

// rollout replaces one Pod after the other by a Pod with another name. The next one starts before one stops, as with
// maxSurge 1.
func rollout(ctx context.Context, c *crew.Crew) error {
	for i := range shardsAtFirst {
		if err := c.Start(ctx, fmt.Sprintf("new-%d", i)); err != nil {
			return err
		}

		if err := c.End(fmt.Sprintf("pod-%d", i)); err != nil {
			return err
		}
	}

	return nil
}

const (
	reliefRow = "relief-time"
	// slowWork is how long a reconcile of an overloaded shard takes, with fewWorkers.
	slowWork   = 200 * time.Millisecond
	fewWorkers = 5
	// solo is the Pod that has all objects at first.
	solo = "pod-0"
)

// relief measures how soon a second shard relieves an overloaded one. The floor is a first shard that has no work.
func relief(ctx context.Context, b *run.Bench) error {
	c, err := crew.Gather(ctx, b, crew.Options{
		Name: "relief", Shards: 1, Websites: run.Pick(b, 1000, 10_000), Args: args(slowWork, fewWorkers),
	})
	if err != nil {
		return err
	}

	r := &reliever{Crew: c, bench: b}
	note := fmt.Sprintf("10,000 Websites with a ConfigMap each, 1,000 at a small scale. All of them are "+
		"queued in the first shard. A controller has %d workers, and a reconcile takes %s: "+
		"a shard works on at most %.0f Websites per second. The time counts from the start of the second shard's process "+
		"to the last of its objects.", fewWorkers, slowWork, fewWorkers/slowWork.Seconds())

	return run.Compare(ctx, b, run.Sides[float64]{
		Value: func(ctx context.Context) (float64, error) { return r.relieve(ctx, slowWork) },
		Floor: func(ctx context.Context) (float64, error) { return r.relieve(ctx, 0) },
	}, run.Figure[float64]{Row: result.Row{
		ID: reliefRow, Title: "time until a second shard has half of the objects of a shard whose queue is full", Unit: "s",
		FloorTitle: "the first shard has no work", Judge: result.JudgeValue, Target: result.Max(60), Notes: []string{note},
	}, Of: run.Itself})
}

// reliever is a crew of one shard, which others have joined so often.
type reliever struct {
	*crew.Crew

	bench  *run.Bench
	joined int
}

// relieve restarts the first shard, which queues all of its objects, with reconciles that take so long, and lets
// another one join. If they take no time, it waits until the queue is empty. It returns how many seconds it takes until
// the other one has half of the objects. In the end, that one is gone.
func (c *reliever) relieve(ctx context.Context, work time.Duration) (took float64, err error) {
	b, first := c.bench, c.Full(solo)

	err = b.Local.Restart(ctx, first, args(work, fewWorkers)...)
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

	from := record.Now()
	c.joined++
	second := fmt.Sprintf("pod-%d", c.joined)

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
