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
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterring/clusterring/tools/load/internal/capacity"
	"github.com/clusterring/clusterring/tools/load/internal/crew"
	"github.com/clusterring/clusterring/tools/load/internal/points"
	"github.com/clusterring/clusterring/tools/load/internal/result"
	"github.com/clusterring/clusterring/tools/load/internal/run"
)

const (
	// workers is the number of workers of a shard, and work how long one needs for a change. The writes at the end of the
	// work take about a hundredth of it, so that the API server's latency hardly matters.
	workers = 12
	work    = time.Second
	// forOne is how many times as often one shard is measured: all others are compared with it, and few changes differ
	// more by chance.
	forOne = 3
	// nearIdeal is the least part of what shards carry that cost nothing.
	nearIdeal = 0.97
	// nearStatic is the least part of what shards carry without services.
	nearStatic = 0.99
	thesisID   = "capacity-thesis"
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
	of    func(*scaling, context.Context) (map[string]float64, error)
	ideal func(*scaling, capacity.Shards) map[string]float64
	// floor lets it also measure the floor.
	floor bool
	// targets are the least loads of some numbers of shards, divided by that of one.
	targets map[int]float64
}

var methods = []method{{
	id: "capacity-saturated", title: "that shards work on, all of them busy", floor: true,
	targets: map[int]float64{5: 4.95, 10: 9.9},
	note:    fmt.Sprintf("There are %.1f times as many changes as all workers can do.", capacity.Overload),
	of: func(f *scaling, ctx context.Context) (map[string]float64, error) {
		v, err := f.Saturate(ctx, capacity.Overload*f.most(), f.warmUp, f.window)
		return map[string]float64{rate: v}, err
	},
	ideal: func(_ *scaling, s capacity.Shards) map[string]float64 { return map[string]float64{ideal: s.Most()} },
}, rising(method{
	id: "capacity-ramp", title: "that shards carry, while their rate grows in proportion to the shards", floor: true,
	note: "The result is", targets: map[int]float64{5: 4.7, 10: 9.4},
}, func(f *scaling) float64 { return f.slope * float64(f.shards) }), rising(method{
	id: thesisID, title: "that shards carry, while their rate grows equally for any number of shards",
	note:    "As in the thesis, few shards seem to carry more than they do, because their overload begins slowly. The result is",
	targets: map[int]float64{5: 4.4, 10: 8.7},
}, func(f *scaling) float64 { return f.pace }), {
	id: "capacity-steady", title: "that shards carry steadily", of: (*scaling).steady, ideal: (*scaling).idealSteady,
	targets: map[int]float64{5: 4.8, 10: 9.5},
	note:    "At this rate, 99 % of the changes in a window were begun within 1 s and done within 5 s.",
}}

// rising completes a method that finds the rate up to which the shards keep the objectives while it grows by a slope.
func rising(m method, slope func(f *scaling) float64) method {
	m.note += " the rate up to which 99 % of all changes since the beginning were begun within 1 s and done within 5 s."
	m.of = func(f *scaling, ctx context.Context) (map[string]float64, error) {
		v, err := f.Rise(ctx, slope(f), f.most())
		return map[string]float64{rate: v}, err
	}
	m.ideal = func(f *scaling, s capacity.Shards) map[string]float64 {
		grows := capacity.Rate{Slope: slope(f)}
		end := time.Duration(2 * s.Most() / grows.Slope * float64(time.Second)) //nolint:mnd // long after

		return map[string]float64{ideal: grows.At(capacity.Knee(s.Ramp(f.Rng, grows, end)))}
	}

	return m
}

// scaling is a fleet that grows.
type scaling struct {
	*fleet

	shards int
	// dealt are the Websites as they were before they were dealt; nil if they are where the sharder wants them.
	dealt []metav1.PartialObjectMetadata
	// warmUp is the time until all workers are busy, and window how long busy shards are observed.
	warmUp, window time.Duration
	// slope is by how much the rate of each shard grows in a second, pace by how much that of all does if it is the same
	// for any number of shards.
	slope, pace float64
	// steps is the number of steady rates that are tried, for a window each.
	steps int
}

func newScaling(b *run.Bench, sharder string) *scaling {
	f := &scaling{
		fleet: newFleet(b, sharder, 0), shards: 1,
		warmUp: run.Pick(b, 2*time.Second, 5*time.Second), window: run.Pick(b, 6*time.Second, 2*time.Minute),
		steps: run.Pick(b, 2, 6),                                                                        //nolint:mnd // small: in seconds
		slope: run.Pick(b, workers/8.0, capacity.Slope), pace: run.Pick(b, workers/4.0, capacity.Slope), //nolint:mnd // the same
	}
	f.Beyond, f.Every = run.Pick(b, 3*time.Second, time.Minute), run.Pick(b, time.Second, 2*time.Second)

	return f
}

// most returns how many changes per second all workers can do.
func (f *scaling) most() float64 { return float64(workers*f.shards) / work.Seconds() }

// reported are the numbers of shards with rows of their own: one for a small scale, and two.
var reported = []int{3, 5, 10}

// row returns the id of a row about n shards.
func (m method) row(n int, of string) string { return fmt.Sprintf("%s-%d%s", m.id, n, of) }

// rows returns the ids of all rows.
func (m method) rows() (ids []string) {
	for _, n := range reported {
		for _, of := range []string{"", "-" + Static, "-" + ideal, each} {
			ids = append(ids, m.row(n, of))
		}
	}

	return ids
}

// Measurements returns what this package measures. What assigns the objects is one of [Sharders].
func Measurements(sharder *string) []run.Measurement {
	part := run.Part{Run: func(ctx context.Context, b *run.Bench) error { return newScaling(b, *sharder).measure(ctx) }}
	for _, m := range methods {
		part.Rows = append(part.Rows, m.rows()...)
	}

	return []run.Measurement{{Name: "scale-out", Parts: []run.Part{part}}}
}

// measure measures growing numbers of shards with each of the methods.
func (f *scaling) measure(ctx context.Context) error {
	counts := run.Pick(f.bench, []int{1, 3}, []int{1, 2, 3, 4, 5, 10})
	wanted := slices.DeleteFunc(slices.Clone(methods), func(m method) bool {
		return !f.bench.Wants(m.rows()...)
	})

	for _, n := range counts {
		repeat := f.bench.Repeat()
		if n == 1 && f.bench.Scale != run.Small {
			repeat *= forOne
		}

		for round := range repeat {
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
		for _, n := range reported {
			if slices.Contains(counts, n) {
				f.report(m, n, counts)
			}
		}

		draw(f.bench, m.id, m.title)
	}

	for _, id := range []string{"capacity-pods-saturated", "capacity-pods-ramp"} { // those of a run on a cluster, if any
		draw(f.bench, id, "of Pods with a CPU limit")
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
func (f *scaling) point(ctx context.Context, m method, key points.Key) (p points.Point, err error) {
	if f.Crew == nil {
		err := f.form(ctx, workers, work, crew.Options{
			Name: "scale-out", Shards: 1, Websites: run.Pick(f.bench, 900, 9000), Unrecorded: true,
		})
		if err != nil {
			return p, err
		}

		f.bench.Cleanup(f.collect)
	}

	if err := f.enter(ctx, key.Sharder == Static, key.X); err != nil {
		return p, err
	}

	f.Rng = rand.New(rand.NewPCG(1, uint64(key.Round))) //nolint:gosec // no secret, and not negative

	p.Invalid, err = f.judged(ctx, func() (err error) {
		p.Values, err = m.of(f, ctx)
		return err
	})
	if err != nil {
		return p, err
	}

	p.Values[cores] = f.busiest

	return p, f.simulate(ctx, m, p.Values)
}

// simulations is how often shards that cost nothing are simulated: chance moves one result by several percent.
const simulations = 50

// simulate adds the means of what a method says of shards that cost nothing, and have the shares of the objects that
// the ring's shards have.
func (f *scaling) simulate(ctx context.Context, m method, to map[string]float64) error {
	has, err := f.shares(ctx, f.Crew)
	if err != nil {
		return err
	}

	s := capacity.Shards{Workers: workers * f.shards / len(has), Work: work}
	for _, n := range has {
		s.Shares = append(s.Shares, float64(n)/float64(f.Crew.Sites.Count))
	}

	to[fullest] = slices.Max(s.Shares) * float64(len(s.Shares))

	for range simulations {
		for name, v := range m.ideal(f, s) {
			to[name] += v / simulations
		}
	}

	return nil
}

// report reports the points of a method, also those of earlier runs: of n shards, compared with one.
func (f *scaling) report(m method, n int, counts []int) {
	of := func(sharder string, n int, value string) []float64 {
		values, _ := f.bench.Points.Of(m.id, sharder, n, value)
		return values
	}
	title := fmt.Sprintf("changes per second %s, %d shards", m.title, n)
	parts := make([]string, 0, len(counts))

	for _, n := range counts {
		found, _, _ := result.Spread(of(f.sharder, n, rate))
		simulated, _, _ := result.Spread(of(f.sharder, n, ideal))
		parts = append(parts, fmt.Sprintf("%d: %.3f", n, found/simulated))
	}

	notes := []string{fmt.Sprintf("Each shard has %d workers, and a change takes %s. %s Divided by what simulated shards carry "+
		"that cost nothing: %s.", workers, work, m.note, strings.Join(parts, ", "))}

	_, bad := f.bench.Points.Of(m.id, f.sharder, n, rate)
	if len(bad) > 0 {
		notes = append(notes, fmt.Sprintf("Points that do not count: %q", bad))
	}

	one, _, _ := result.Spread(of(f.sharder, 1, rate))
	rows := []result.Row{{
		ID: m.row(n, ""), Title: title + " / one", Unit: "×", Target: result.Min(m.targets[n]),
		Values: result.Column(of(f.sharder, n, rate), func(v float64) float64 { return v / one }),
	}, {
		ID: m.row(n, "-"+ideal), Title: title, Unit: "changes/s", Values: of(f.sharder, n, rate),
		Floor:      of(f.sharder, n, ideal),
		FloorTitle: "simulated shards that cost nothing and have the same shares of the objects", Target: result.Min(nearIdeal),
	}}

	if dealt := of(Static, n, rate); f.sharder == Services && len(dealt) == len(rows[1].Values) {
		rows = append(rows, result.Row{
			ID: m.row(n, "-"+Static), Title: title, Unit: "changes/s", Values: rows[1].Values, Floor: dealt,
			FloorTitle: "the same shards without services, objects in equal shares", Target: result.Min(nearStatic),
		})
	}

	if simulated := of(f.sharder, n, ideal+each); len(simulated) > 0 {
		rows = append(rows, result.Row{
			ID: m.row(n, each), Title: title + ", every shard for itself", Unit: "changes/s",
			Values: of(f.sharder, n, rate+each), Floor: simulated, FloorTitle: rows[1].FloorTitle, Target: result.Min(nearIdeal),
		})
	}

	for _, row := range rows {
		row.Notes = notes
		if len(bad) > 0 || row.Target.Value == 0 {
			row.Target = result.Target{}
		}

		f.bench.Report(row)
	}
}

// thesis is what the thesis has found for 1 to 5 shards, divided by the first: results/scale-out of its repository at
// commit 801d027, in changes.
var thesis = []float64{1, 1.54, 2.20, 2.64, 3.00}

// draw draws what more shards carry, as a multiple of what one does, for every sharder that was measured.
func draw(b *run.Bench, id, title string) {
	chart := result.Chart{
		ID: id, Title: "changes per second " + title + ": n shards / one", X: "shards", Y: "×", Lines: []result.Line{
			divided("simulated shards that cost nothing", line(b, "", points.Key{Experiment: id, Sharder: Services}, ideal)),
		},
	}
	chart.Lines[0].Dashed = true

	for _, sharder := range slices.Sorted(maps.Keys(Sharders)) {
		chart.Lines = append(chart.Lines,
			divided(sharder, line(b, "", points.Key{Experiment: id, Sharder: sharder}, rate)))
	}

	if id == thesisID {
		published := result.Line{Name: "published in 2024: version 0.3.0, nodes of 8 cores", Dashed: true}
		for i, v := range thesis {
			published.Points = append(published.Points, result.XY{X: float64(i + 1), Y: v})
		}

		chart.Lines = append(chart.Lines, published)
	}

	b.Draw(chart)
}

// divided returns a line divided by its first value.
func divided(name string, l result.Line) result.Line {
	l.Name = name
	if len(l.Points) > 0 && l.Points[0].Y == 0 {
		l.Points = nil // one shard carries nothing
	}

	for i := range slices.Backward(l.Points) {
		l.Points[i].Y /= l.Points[0].Y
	}

	return l
}

// kept are the senses in which shards keep the objectives.
var kept = map[string]func(capacity.Sample) bool{"": capacity.Sample.Kept, each: capacity.Sample.KeptByEach}

// steady finds the highest rate at which the shards keep the objectives: all of them together, and each of them.
func (f *scaling) steady(ctx context.Context) (map[string]float64, error) {
	seen := map[float64]capacity.Sample{}
	found := map[string]float64{}

	for sense, kept := range kept {
		highest, err := capacity.Bisect(f.most(), f.steps, func(rate float64) (ok bool, err error) {
			s, known := seen[rate]
			if !known {
				s, err = f.hold(ctx, rate)
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

// hold returns what becomes of the changes in a window at a steady rate.
func (f *scaling) hold(ctx context.Context, rate float64) (seen capacity.Sample, err error) {
	err = f.Under(ctx, func() error {
		err := f.bench.Pause(ctx, f.warmUp)
		before, more := f.Sample(ctx)

		err = errors.Join(err, more, f.bench.Pause(ctx, f.window))
		after, more := f.Sample(ctx)

		if err = errors.Join(err, more); err == nil {
			seen = after.Minus(before)
		}

		return err
	}, f.Edits(capacity.Rate{Base: rate}, f.Any))

	return seen, err
}

func (f *scaling) idealSteady(s capacity.Shards) map[string]float64 {
	found := map[string]float64{}
	for sense, kept := range kept {
		found[ideal+sense] = s.Highest(f.Rng, f.window, f.steps, kept)
	}

	return found
}
