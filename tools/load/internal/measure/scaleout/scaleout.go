// Package scaleout measures how much more load a ring carries with more shards.
//
// A shard is a process of the example controller with a fixed number of workers, each of which needs a fixed time for a
// change of a Website: the capacity of a shard is the same on any machine. The machine itself is shared by all shards,
// the API server, and the load. What it adds is in the floor: the same shards under the same load, but their objects
// are dealt in equal shares, and no service runs.
//
// There is no single way to tell what shards carry. Four methods stand side by side, and beside each what it would say
// of shards that cost nothing and have the same shares of the objects.
package scaleout

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/clusterring/clusterring/tools/load/internal/capacity"
	"github.com/clusterring/clusterring/tools/load/internal/points"
	"github.com/clusterring/clusterring/tools/load/internal/result"
	"github.com/clusterring/clusterring/tools/load/internal/run"
	"github.com/clusterring/clusterring/tools/testkit/record"
)

const (
	// workers is the number of workers of a shard, and work how long one needs for a change. The writes at the end of the
	// work take about a hundredth of it, so that the API server's latency hardly matters.
	workers = 12
	work    = time.Second
	// overload is how many times as many changes there are as all workers can do.
	overload = 1.3
	// slope is by how much the rate of changes of a shard grows in a second: as in the thesis, where that of all shards
	// grows to 75 per second in 15 minutes.
	slope = 75.0 / 900
	// nearIdeal is the least part of what shards carry that cost nothing.
	nearIdeal = 0.97
)

// The names of the figures of a point. What a method says is rate, and of shards that cost nothing ideal; with each
// after it, every shard is within the objectives. Fullest is the largest share of the objects, divided by the mean, and
// cores is how many of them all processes together use.
const (
	rate    = "rate"
	each    = "-by-each"
	ideal   = "ideal"
	fullest = "fullest"
	cores   = "cores"
)

// method is a way to find out what load shards carry.
type method struct {
	// id begins the ids of its rows.
	id, title, note string
	// of measures, and ideal simulates shards that cost nothing.
	of    func(*fleet, context.Context) (map[string]float64, error)
	ideal func(*fleet, capacity.Shards) map[string]float64
	// floor lets it also measure the floor.
	floor bool
	// target is the least part of as many times the load of one shard as there are shards.
	target float64
}

var methods = []method{{
	id: "capacity-saturated", title: "that shards work on, all of them busy", floor: true, target: 0.99,
	note: fmt.Sprintf("There are %.1f times as many changes as all workers can do.", overload), of: (*fleet).saturate,
	ideal: func(_ *fleet, s capacity.Shards) map[string]float64 { return map[string]float64{ideal: s.Most()} },
}, rising(method{
	id: "capacity-ramp", title: "that shards carry, while their rate grows in proportion to the shards", floor: true,
	note: "The result is", target: 0.94,
}, func(f *fleet) float64 { return f.slope * float64(f.shards) }), rising(method{
	id: "capacity-thesis", title: "that shards carry, while their rate grows equally for any number of shards",
	note:   "As in the thesis, few shards seem to carry more than they do, because their overload begins slowly. The result is",
	target: 0.87,
}, func(f *fleet) float64 { return f.pace }), {
	id: "capacity-steady", title: "that shards carry steadily", of: (*fleet).steady, ideal: (*fleet).idealSteady,
	target: 0.95,
	note:   "At this rate, 99 % of the changes in a window were begun within 1 s and done within 5 s.",
}}

// rising completes a method that finds the rate up to which the shards keep the objectives while it grows by a slope.
func rising(m method, slope func(f *fleet) float64) method {
	m.note += " the rate up to which 99 % of all changes since the beginning were begun within 1 s and done within 5 s."
	m.of = func(f *fleet, ctx context.Context) (map[string]float64, error) { return f.rise(ctx, slope(f)) }
	m.ideal = func(f *fleet, s capacity.Shards) map[string]float64 {
		grows := capacity.Rate{Slope: slope(f)}
		end := time.Duration(2 * s.Most() / grows.Slope * float64(time.Second)) //nolint:mnd // long after

		return map[string]float64{ideal: grows.At(capacity.Knee(s.Ramp(f.rng, grows, end)))}
	}

	return m
}

// Measurements returns what this package measures. What assigns the objects is one of [Sharders].
func Measurements(sharder *string) []run.Measurement {
	part := run.Part{Run: func(ctx context.Context, b *run.Bench) error { return newFleet(b, *sharder).measure(ctx) }}
	for _, m := range methods {
		part.Rows = append(part.Rows, m.id, m.id+"-ideal")
	}

	return []run.Measurement{{Name: "scale-out", Parts: []run.Part{part}}}
}

// measure measures growing numbers of shards with each of the methods.
func (f *fleet) measure(ctx context.Context) error {
	counts := run.Pick(f.bench, []int{1, 3}, []int{1, 2, 3, 4, 5, 10})
	wanted := slices.DeleteFunc(slices.Clone(methods), func(m method) bool {
		return !f.bench.Wants(m.id, m.id+"-ideal")
	})

	for _, n := range counts {
		for round := range f.bench.Repeat() {
			for _, side := range sides(f.sharder, round) {
				for _, m := range wanted {
					if side != f.sharder && !m.floor {
						continue
					}

					key := points.Key{Experiment: m.id, Sharder: side, X: n, Round: round}
					if err := f.bench.Once(key, func() (points.Point, error) { return f.point(ctx, m, key) }); err != nil {
						return err
					}
				}
			}
		}
	}

	for _, m := range wanted {
		f.report(m, counts[0], counts[len(counts)-1])
	}

	return nil
}

// sides returns what assigns the objects in a round: a sharder, and the floor of the services in turns with them.
func sides(sharder string, round int) []string {
	switch {
	case sharder != Services:
		return []string{sharder}
	case round%2 == 1:
		return []string{Static, Services}
	default:
		return []string{Services, Static}
	}
}

// point measures one point.
func (f *fleet) point(ctx context.Context, m method, key points.Key) (p points.Point, err error) {
	if f.Crew == nil {
		if err := f.form(ctx); err != nil {
			return p, err
		}
	}

	if err := f.enter(ctx, key.Sharder == Static, key.X); err != nil {
		return p, err
	}

	return f.trial(ctx, m)
}

// report reports the points of a method, also those of earlier runs: of n shards, compared with one.
func (f *fleet) report(m method, one, n int) {
	of := func(sharder string, n int, value string) []float64 {
		values, _ := f.bench.Points.Of(m.id, sharder, n, value)
		return values
	}
	// ratios returns the values of n shards divided by the median of one.
	ratios := func(sharder string) []float64 {
		median, _, _ := result.Spread(of(sharder, one, rate))
		return result.Column(of(sharder, n, rate), func(v float64) float64 { return v / median })
	}
	notes := []string{fmt.Sprintf("Each shard has %d workers, and a change takes %s. %s", workers, work, m.note)}
	row := result.Row{
		ID: m.id, Title: fmt.Sprintf("changes per second %s: %d shards / one", m.title, n),
		Unit: "×", Values: ratios(f.sharder), Judge: result.JudgeValue,
		Target: result.Min(math.Round(100*m.target*float64(n)) / 100), Notes: notes, //nolint:mnd // two digits
	}

	if _, bad := f.bench.Points.Of(m.id, f.sharder, n, rate); len(bad) > 0 {
		row.Target, row.Notes = result.Target{}, append(row.Notes, fmt.Sprintf("Points that do not count: %q", bad))
	}

	if floor := ratios(Static); f.sharder == Services && len(floor) == len(row.Values) {
		row.Floor, row.FloorTitle = floor, "the same shards without services, objects in equal shares"
	}

	f.bench.Report(row, result.Row{
		ID: m.id + "-ideal", Title: fmt.Sprintf("changes per second %s, %d shards", m.title, n), Unit: "changes/s",
		Values: of(f.sharder, n, rate), Floor: of(f.sharder, n, ideal), Target: result.Min(nearIdeal), Notes: row.Notes,
		FloorTitle: "simulated shards that cost nothing and have the same shares of the objects",
	})
}

// saturate returns how many changes per second the shards work on while there are more than they can do.
func (f *fleet) saturate(ctx context.Context) (map[string]float64, error) {
	var done float64

	err := f.under(ctx, capacity.Rate{Base: overload * f.most()}, func() error {
		err := f.bench.Pause(ctx, f.warmUp)
		_, _, before := f.tracker.Totals()
		from := record.Now()
		err = errors.Join(err, f.bench.Pause(ctx, f.window))
		_, _, after := f.tracker.Totals()
		done = float64(after-before) / (record.Now() - from).Seconds()

		return err
	})

	return map[string]float64{rate: done}, err
}

// rise finds the rate up to which the shards keep the objectives, while it grows by a slope.
func (f *fleet) rise(ctx context.Context, slope float64) (map[string]float64, error) {
	grows := capacity.Rate{Slope: slope}

	before, err := f.sample(ctx)
	if err != nil {
		return nil, err
	}

	var samples []capacity.Sample

	err = f.under(ctx, grows, func() error {
		// At first, chance decides: one of few changes may be late. From full on, there is more than all workers can do.
		full := time.Duration(f.most() / slope * float64(time.Second))
		for at := time.Duration(0); at < full || at-capacity.Knee(samples) < f.beyond; {
			err := f.bench.Pause(ctx, f.every)
			s, more := f.sample(ctx)

			if err := errors.Join(err, more); err != nil {
				return err
			}

			samples = append(samples, s.Minus(before))
			at = s.At - before.At
		}

		return nil
	})

	return map[string]float64{rate: grows.At(capacity.Knee(samples))}, err
}

// kept are the senses in which shards keep the objectives.
var kept = map[string]func(capacity.Sample) bool{"": capacity.Sample.Kept, each: capacity.Sample.KeptByEach}

// steady finds the highest rate at which the shards keep the objectives: all of them together, and each of them.
func (f *fleet) steady(ctx context.Context) (map[string]float64, error) {
	seen := map[float64]capacity.Sample{}
	found := map[string]float64{}

	for sense, kept := range kept {
		highest, err := capacity.Bisect(f.most(), f.steps, func(rate float64) (ok bool, err error) {
			s, known := seen[rate]
			if !known {
				s, err = f.look(ctx, rate)
				seen[rate] = s
			}

			return err == nil && kept(s), err
		})
		if err != nil {
			return nil, err
		}

		found[rate+sense] = highest
	}

	return found, nil
}

// look returns what becomes of the changes in a window at a steady rate.
func (f *fleet) look(ctx context.Context, rate float64) (seen capacity.Sample, err error) {
	err = f.under(ctx, capacity.Rate{Base: rate}, func() error {
		err := f.bench.Pause(ctx, f.warmUp)
		before, more := f.sample(ctx)

		err = errors.Join(err, more, f.bench.Pause(ctx, time.Duration(float64(f.changes)/rate*float64(time.Second))))
		after, more := f.sample(ctx)

		if err = errors.Join(err, more); err == nil {
			seen = after.Minus(before)
		}

		return err
	})

	return seen, err
}

func (f *fleet) idealSteady(s capacity.Shards) map[string]float64 {
	found := map[string]float64{}
	for sense, kept := range kept {
		found[ideal+sense] = s.Highest(f.rng, f.changes, f.steps, kept)
	}

	return found
}
