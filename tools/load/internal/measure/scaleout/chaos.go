package scaleout

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"time"

	"github.com/clusterring/clusterring/tools/lab/continuity"
	"github.com/clusterring/clusterring/tools/load/internal/capacity"
	"github.com/clusterring/clusterring/tools/load/internal/crew"
	"github.com/clusterring/clusterring/tools/load/internal/points"
	"github.com/clusterring/clusterring/tools/load/internal/result"
	"github.com/clusterring/clusterring/tools/load/internal/run"
	"github.com/clusterring/clusterring/tools/load/internal/target"
)

// The shards of these experiments: half as many changes as their workers can do.
const (
	chaosShards, chaosWorkers = 5, 3
	chaosWork                 = 250 * time.Millisecond
	// rolloutWorkers and rolloutWork are of shards whose delays are short beside those of a rollout.
	rolloutWorkers = 50
	rolloutWork    = 20 * time.Millisecond
	rolloutRate    = 40
	// mostUnowned is for how long an object may be without a shard (I2): twice a Lease of 15 s, and as long again.
	mostUnowned = time.Minute
)

// trouble is what happens to a ring under load again and again.
type trouble struct {
	id, title string
	crew.Options
	workers int
	work    time.Duration
	// rate is the number of changes per second. With hot, a twentieth of the Websites have ten times as many as the
	// others.
	rate float64
	hot  bool
	// long is how long it goes on, in minutes. Every is the time from strike to strike: 0 for back to back; with byChance,
	// that is the mean.
	long     int
	every    time.Duration
	byChance bool
	strike   func(*fleet, context.Context) error
	// late limits the 99th percentile of the time until changes are done, in seconds; 0 for no limit.
	late  float64
	small bool // also at a small scale
}

// chaos completes a trouble in which shards come and go.
func chaos(t trouble, args ...string) trouble {
	t.Options = crew.Options{Shards: chaosShards, Args: args}
	t.workers, t.work, t.late = chaosWorkers, chaosWork, capacity.DoneWithin.Seconds()
	t.rate = chaosShards * chaosWorkers / chaosWork.Seconds() / 2 //nolint:mnd // half

	return t
}

// rollouts completes a trouble in which all shards are replaced, one by one.
func rollouts(t trouble, slots int) trouble {
	t.Options = crew.Options{Shards: chaosShards, Slots: slots}
	t.workers, t.work, t.rate, t.long = rolloutWorkers, rolloutWork, rolloutRate, 15

	return t
}

var troubles = []trouble{
	chaos(trouble{
		id: "chaos-stop", title: "a Pod is deleted every 5 minutes", long: 15, every: 5 * time.Minute,
		strike: func(f *fleet, ctx context.Context) error {
			return f.replace(ctx, func(pod string) error { return f.End(pod) })
		},
	}),
	chaos(trouble{
		id: "chaos-word", title: "a Pod is killed every minute, and the kubelet reports it", long: 60, every: time.Minute,
		byChance: true, strike: (*fleet).kill, small: true,
	}),
	chaos(trouble{
		id: "chaos-silent", title: "a Pod with a Lease of 15 s vanishes every 5 minutes", long: 15, every: 5 * time.Minute,
		strike: (*fleet).vanish,
	}),
	chaos(trouble{
		id: "chaos-silent-5s", title: "a Pod with a Lease of 5 s vanishes every 5 minutes", long: 15, every: 5 * time.Minute,
		strike: (*fleet).vanish,
	}, "--lease-duration=5s"),
	chaos(trouble{
		id: "chaos-services", title: "a Pod or a service is killed every minute", long: 15, every: time.Minute,
		byChance: true, strike: func(f *fleet, ctx context.Context) error {
			victim := f.Rng.IntN(len(f.pods) + len(target.Services))
			if victim < len(f.pods) {
				return f.kill(ctx)
			}

			service := target.Services[victim-len(f.pods)]

			return errors.Join(f.bench.Local.Process(service).Destroy(), f.bench.Local.Resume(ctx, service))
		},
	}),
	chaos(trouble{id: "hot", title: "a twentieth of the objects have ten times as many changes", long: 5, hot: true}),
	rollouts(trouble{
		id: "rollouts-deployment", title: "rolling updates of a Deployment, shards named like their Pods",
		strike: (*fleet).roll,
	}, 0),
	rollouts(trouble{
		id: "rollouts-statefulset", title: "rolling updates of a StatefulSet",
		strike: func(f *fleet, ctx context.Context) error {
			return f.each(ctx, func(i int) error { return f.Again(ctx, f.pods[i]) })
		},
	}, 0),
	rollouts(trouble{
		id: "rollouts-slots", title: "rolling updates of a Deployment with slots", strike: (*fleet).roll, late: 0.5,
		small: true,
	}, chaosShards),
	once(trouble{id: "once-up", title: "3 shards become 5", strike: func(f *fleet, ctx context.Context) error {
		f.pods = append(f.pods, f.Next(), f.Next())
		return f.Start(ctx, f.pods[3:]...)
	}}, 3), //nolint:mnd // as the title tells
	once(trouble{id: "once-down", title: "5 shards become 2", strike: func(f *fleet, ctx context.Context) error {
		return f.leave(ctx, 3, func(pods []string) error { return f.End(pods...) }) //nolint:mnd // the same
	}}, chaosShards),
	once(trouble{
		id: "once-node", title: "a node with 2 of 5 Pods vanishes, Leases of 15 s",
		strike: func(f *fleet, ctx context.Context) error {
			return f.leave(ctx, 2, func(pods []string) error { return f.Crash(pods...) })
		},
	}, chaosShards),
	once(trouble{
		id: "once-standby", title: "a Pod is killed, the kubelet reports it, and another Pod waits for a slot", late: 1.5,
		strike: func(f *fleet, ctx context.Context) error {
			return f.leave(ctx, 1, func(pods []string) error { return f.Fail(ctx, pods[0]) })
		},
	}, chaosShards+1),
}

// once completes a trouble that happens once, to so many shards with slots.
func once(t trouble, shards int) trouble {
	t = rollouts(t, chaosShards)
	t.Shards, t.long, t.every = shards, 1, 30*time.Second //nolint:mnd // in the middle

	return t
}

// leave lets the first n Pods leave.
func (f *fleet) leave(ctx context.Context, n int, how func(pods []string) error) error {
	_, err := f.sample(ctx) // what they have begun
	gone := f.pods[:n]
	f.pods = f.pods[n:]

	return errors.Join(err, how(gone))
}

// replace starts another Pod after one that chance has chosen has left.
func (f *fleet) replace(ctx context.Context, leave func(pod string) error) error {
	i := f.Rng.IntN(len(f.pods))

	if _, err := f.sample(ctx); err != nil { // what it has begun
		return err
	}

	if err := leave(f.pods[i]); err != nil {
		return err
	}

	f.pods[i] = f.Next()

	return f.Start(ctx, f.pods[i])
}

func (f *fleet) kill(ctx context.Context) error {
	return f.replace(ctx, func(pod string) error { return f.Fail(ctx, pod) })
}

func (f *fleet) vanish(ctx context.Context) error {
	return f.replace(ctx, func(pod string) error { return f.Crash(pod) })
}

// each does something with each Pod, one after the other.
func (f *fleet) each(ctx context.Context, do func(i int) error) error {
	for i := range f.pods {
		if _, err := f.sample(ctx); err != nil { // what it has begun
			return err
		}

		if err := do(i); err != nil {
			return err
		}
	}

	return nil
}

// roll replaces each Pod by a new one, which starts before it, as a Deployment with maxSurge 1 does.
func (f *fleet) roll(ctx context.Context) error {
	return f.each(ctx, func(i int) error {
		before := f.pods[i]
		f.pods[i] = f.Next()

		return errors.Join(f.Start(ctx, f.pods[i]), f.End(before))
	})
}

// hot returns one of all Websites: one of the first twentieth ten times as often as one of the others.
func (f *fleet) hot() int {
	const twentieth, tenTimes = 20, 10

	first := f.Crew.Sites.Count / twentieth
	if rand.IntN(tenTimes+twentieth-1) < tenTimes { //nolint:gosec // no secret
		return rand.IntN(first) //nolint:gosec // the same
	}

	return first + rand.IntN(f.Crew.Sites.Count-first) //nolint:gosec // the same
}

// strikes returns when it happens.
func (t trouble) strikes(rng *rand.Rand, long time.Duration) iter.Seq[time.Duration] {
	switch {
	case t.strike == nil:
		return never
	case t.byChance:
		return capacity.Rate{Base: 1 / t.every.Seconds()}.Arrivals(rng, long)
	}

	return func(yield func(time.Duration) bool) {
		for at := t.every; at < long; at += t.every {
			if !yield(at) {
				return
			}
		}
	}
}

// Chaos returns measurements of how a ring keeps the objectives while its shards come and go, all day long.
func Chaos() []run.Measurement {
	m := run.Measurement{Name: "chaos"}
	for _, t := range troubles {
		m.Parts = append(m.Parts, run.Part{Rows: []string{t.id, t.id + "-begun"}, NotSmall: !t.small, Run: t.measure})
	}

	return []run.Measurement{m}
}

// The figures of a trouble: the 99th percentile of the time until a change is done, in seconds, and the part of the
// changes that were begun within a second, in percent.
const (
	doneP99 = "done p99"
	inTime  = "begun in time"
	strikes = "strikes"
	moved   = "moved"
)

func (t trouble) measure(ctx context.Context, b *run.Bench) error {
	for round := range b.Repeat() {
		key := points.Key{Experiment: t.id, Sharder: Services, X: t.Shards, Round: round}

		err := b.Parts(ctx, run.Part{Run: func(ctx context.Context, b *run.Bench) error {
			return b.Once(key, func() (points.Point, error) { return t.happens(ctx, newFleet(b, Services, round), key) })
		}})
		if err != nil {
			return err
		}
	}

	of := func(value string) []float64 {
		values, _ := b.Points.Of(t.id, Services, t.Shards, value)
		return values
	}
	sum := func(value string) (sum float64) {
		for _, v := range of(value) {
			sum += v
		}

		return sum
	}
	_, bad := b.Points.Of(t.id, Services, t.Shards, doneP99)

	note := fmt.Sprintf("%d shards of %d workers, each of which needs %s for a change; %.0f changes per second for %d minutes. It "+
		"happened %.0f times, objects moved %.0f times, and no invariant was broken.", t.Shards, t.workers, t.work, t.rate,
		t.long, sum(strikes), sum(moved))
	if len(bad) > 0 {
		note += fmt.Sprintf(" Points that do not count: %q", bad)
	}

	done := result.Row{
		ID: t.id, Title: t.title + ": time until a change is done, 99th percentile", Unit: "s", Values: of(doneP99),
		Notes: []string{note},
	}
	if t.late > 0 {
		done.Target = result.Max(t.late)
	}

	b.Report(done, result.Row{
		ID: t.id + "-begun", Title: t.title + ": work that began within 1 s, once it was in the queue of a shard",
		Unit: "%", Values: of(inTime), Notes: []string{note}, Target: result.Min(99), //nolint:mnd // percent
	})

	if t.long > 1 {
		t.draw(b)
	}

	return nil
}

// happens measures once, and fails if an invariant was broken.
func (t trouble) happens(ctx context.Context, f *fleet, key points.Key) (p points.Point, err error) {
	t.Name, t.Websites, t.Judged = t.id+fmt.Sprint(key.Round), run.Pick(f.bench, 100, 1000), true
	if err := f.form(ctx, t.workers, t.work, t.Options); err != nil {
		return p, err
	}

	long := time.Duration(t.long) * time.Minute
	if f.bench.Scale == run.Small {
		t.every, t.byChance, long = min(t.every, tick), false, 2*tick
	}

	pick := f.Any
	if t.hot {
		pick = f.hot
	}

	var whole observed

	p.Invalid, err = f.judged(ctx, func() error {
		return f.Under(ctx, func() (err error) {
			whole, err = f.observe(ctx, observation{
				key: points.Key{Experiment: t.id + overTime, Sharder: Services, Round: key.Round}, long: long,
				every: run.Pick(f.bench, tick, time.Minute), strikes: t.strikes(f.Rng, long),
				strike: func() error { return t.strike(f, ctx) },
			})

			return err
		}, f.Edits(capacity.Rate{Base: t.rate}, pick))
	})
	if err != nil {
		return p, err
	}

	holders := len(f.pods)
	if t.Slots > 0 {
		holders = min(holders, t.Slots)
	}

	if err := f.Complete(ctx, holders); err != nil {
		return p, err
	}

	whole.took = append(whole.took, f.Tracker.Took()...) // what was not done at the end

	found, moves, err := f.Judge(mostUnowned)
	if len(found) > 0 {
		return p, errors.Join(err, fmt.Errorf("%d invariants were broken: %v", len(found), found[0]))
	}

	p.Values = map[string]float64{
		doneP99: continuity.Quantile(whole.took, late).Seconds(), inTime: percent(whole.seen.AllBegun()),
		strikes: float64(whole.strikes), moved: float64(moves),
	}

	return p, err
}

// draw draws what became of the changes, minute by minute.
func (t trouble) draw(b *run.Bench) {
	key := points.Key{Experiment: t.id + overTime, Sharder: Services}
	chart := result.Chart{
		ID: t.id, Title: "99 % of the changes are done within: " + t.title, X: "seconds", Y: "s", Limit: t.late,
		Lines: []result.Line{line(b, "changes that were done in a minute", key, doneP99)},
	}

	for _, at := range line(b, "", points.Key{Experiment: key.Experiment + struckAt, Sharder: Services}, strikes).Points {
		chart.Marks = append(chart.Marks, at.Y)
	}

	b.Draw(chart)
}
