// Package continuity measures what changes of shards cost users: how many objects move in rollouts, when Pods come and go, and when they crash, and
// how long the work on objects that users change meanwhile takes. The shards are processes of the example controller, with the identities of Pods.
package continuity

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/clusterring/clusterring/tools/lab/continuity"
	"github.com/clusterring/clusterring/tools/load/internal/result"
	"github.com/clusterring/clusterring/tools/load/internal/run"
)

// scenario is something that happens to the shards of a ring.
type scenario struct {
	id, title string
	// slots is how many slots there are; 0 if shards have the names of their Pods.
	slots int
	// shards is how many there are at first, then how many there are in the end. They have the names pod-0, pod-1, and so on.
	shards, then int
	play         func(context.Context, *crew) error
	// still is true if no object is to move; late limits the 99th percentile of the work on changes, in seconds: 0 for no limit.
	still bool
	late  float64
	// full is true if the scenario is not played at a small scale.
	full bool
	// work is the time that a reconcile takes in addition, if it is not [work]; crowd is the factor by which there are more objects, if any.
	work  time.Duration
	crowd int
	// workers is how many objects a controller works on at a time, if it is not [concurrency].
	workers int
	// hands is true if the scenario is about how objects are handed over, of which the report then says how long it takes.
	hands bool
}

// shardsAtFirst is the number of shards of most scenarios.
const shardsAtFirst = 5

// scenarios are in the order of the report.
var scenarios = []scenario{
	{
		id: "deployment", full: true, title: "rolling update of a Deployment, shards named like their Pods", shards: shardsAtFirst, then: shardsAtFirst, play: rollout,
	},
	{
		id: "statefulset", full: true, title: "rolling update of a StatefulSet", shards: shardsAtFirst, then: shardsAtFirst, play: restarts,
	},
	{
		id: "slots", title: "rolling update of a Deployment with slots", slots: shardsAtFirst, shards: shardsAtFirst, then: shardsAtFirst, play: rollout,
		still: true, late: 1.5,
	},
	{
		id: "up", full: true, title: "3 shards become 5", slots: shardsAtFirst, shards: 3, then: shardsAtFirst,
		play: func(ctx context.Context, c *crew) error { return c.start(ctx, "pod-3", "pod-4") },
	},
	{
		id: "down", full: true, title: "5 shards become 2", slots: shardsAtFirst, shards: shardsAtFirst, then: 2,
		play: func(ctx context.Context, c *crew) error { return c.end("pod-2", "pod-3", "pod-4") },
	},
	{
		id: "stop", full: true, title: "one of 3 shards stops, reconciles of 250 ms", shards: 3, then: 2, work: 250 * time.Millisecond, crowd: 3, hands: true,
		play: func(ctx context.Context, c *crew) error { return c.end("pod-0") },
	},
	{
		id: "crash", title: "a Pod crashes, Leases of 15 s", full: true, slots: shardsAtFirst, shards: shardsAtFirst, then: shardsAtFirst - 1,
		play: func(_ context.Context, c *crew) error { return c.crash("pod-0") },
	},
	{
		id: "word", title: "a Pod crashes, and the kubelet reports its end", slots: shardsAtFirst, shards: shardsAtFirst, then: shardsAtFirst - 1,
		play: func(ctx context.Context, c *crew) error { return c.fail(ctx, "pod-0") },
	},
	{
		id: "standby", title: "a Pod crashes, the kubelet reports its end, and another Pod waits for a slot", slots: shardsAtFirst, shards: shardsAtFirst + 1,
		then: shardsAtFirst, play: func(ctx context.Context, c *crew) error { return c.fail(ctx, "pod-0") }, still: true, late: 1.5,
	},
	{
		id: "node", title: "a node with 2 of 5 Pods is lost, Leases of 15 s", full: true, slots: shardsAtFirst, shards: shardsAtFirst, then: 3,
		play: func(_ context.Context, c *crew) error { return c.crash("pod-0", "pod-1") },
	},
}

// row returns the id of the row about a figure.
func (s scenario) row(figure string) string { return "continuity-" + s.id + "-" + figure }

func (s scenario) rows() []string {
	rows := []string{s.row("moved"), s.row("late"), s.row("worst")}
	if s.hands {
		rows = append(rows, s.row("handover"), s.row("handover-late"))
	}

	return rows
}

// reconcile is how long a reconcile takes in addition.
func (s scenario) reconcile() time.Duration { return cmp.Or(s.work, work) }

// websites is the number of Websites of the scenario's ring.
func (s scenario) websites(b *run.Bench) int { return run.Pick(b, 100, 1000) * max(s.crowd, 1) }

// Measurements returns what this package measures.
func Measurements() []run.Measurement {
	m := run.Measurement{Name: "continuity", Small: 90 * time.Second, Full: 8 * time.Minute}
	for _, s := range scenarios {
		m.Parts = append(m.Parts, run.Part{Name: s.title, Rows: s.rows(), NotSmall: s.full, Run: s.measure})
	}

	return []run.Measurement{m, reliefMeasurement()}
}

// measure plays the scenario once: each change leaves another ring behind.
func (s scenario) measure(ctx context.Context, b *run.Bench) error {
	c, err := gather(ctx, b, s)
	if err != nil {
		return err
	}

	r, err := c.observe(ctx, func() error { return s.play(ctx, c) }, s.then)
	if err != nil {
		return err
	}

	b.Progress("%s: %v", s.title, r)
	b.Report(s.report(b, r)...)

	return nil
}

// The quantiles of the rows.
const (
	median = 0.5
	late   = 0.99
	worst  = 1
)

func (s scenario) report(b *run.Bench, r continuity.Report) []result.Row {
	moved := result.Row{
		ID: s.row("moved"), Title: s.title + fmt.Sprintf(": objects that move, of %d", 2*s.websites(b)), Unit: "objects", Values: []float64{float64(len(r.Moves))},
		Timeline: timeline(s.title, r),
		Notes:    []string{fmt.Sprintf("The objects are Websites and their ConfigMaps. Meanwhile, users change %d Websites per second, and a reconcile takes %s.", edits, s.reconcile())},
	}
	if s.still {
		moved.Target = result.Max(0)
	}

	slow := result.Row{ID: s.row("late"), Title: s.title + ": time from a change of an object until the work on it is done, 99th percentile", Unit: "s", Values: []float64{r.Quantile(late).Seconds()}}
	if s.late > 0 {
		slow.Target = result.Max(s.late)
	}

	rows := []result.Row{
		moved, slow,
		{ID: s.row("worst"), Title: s.title + ": the same, longest", Unit: "s", Values: []float64{r.Quantile(worst).Seconds()}},
	}
	if !s.hands {
		return rows
	}

	return append(rows,
		result.Row{
			ID: s.row("handover"), Title: s.title + ": time from the drain of an object until it has another shard, median", Unit: "s",
			Values: []float64{r.Handover(median).Seconds()}, Target: result.Max(0.1),
			Notes: []string{"The shard works until all its objects are drained. A reconcile that is under way is finished before its object is released."},
		},
		result.Row{
			ID: s.row("handover-late"), Title: s.title + ": the same, 99th percentile", Unit: "s", Values: []float64{r.Handover(late).Seconds()},
			Target: result.Max(1),
		},
	)
}

func timeline(title string, r continuity.Report) *result.Timeline {
	t := &result.Timeline{Title: title, Period: r.Period.Seconds()}
	for _, w := range r.Work {
		t.Delays = append(t.Delays, result.Delay{At: w.Asked.Seconds(), Took: w.Took.Seconds()})
	}

	for _, at := range r.Moves {
		t.Moves = append(t.Moves, at.Seconds())
	}

	return t
}

// rollout replaces one Pod after the other by a Pod with another name. The next one starts before one stops, as with maxSurge 1.
func rollout(ctx context.Context, c *crew) error {
	for i := range shardsAtFirst {
		if err := c.start(ctx, fmt.Sprintf("new-%d", i)); err != nil {
			return err
		}

		if err := c.end(fmt.Sprintf("pod-%d", i)); err != nil {
			return err
		}
	}

	return nil
}

// restarts stops one Pod after the other, and starts one with its name, the last one first.
func restarts(ctx context.Context, c *crew) error {
	for i := range shardsAtFirst {
		name := fmt.Sprintf("pod-%d", shardsAtFirst-1-i)
		if err := c.end(name); err != nil {
			return err
		}

		if err := c.again(ctx, name); err != nil {
			return err
		}
	}

	return nil
}
