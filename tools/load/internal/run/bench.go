// Package run runs measurements one after the other: in rounds that alternate with their floor, within a time budget.
package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/tools/load/internal/objects"
	"github.com/clusterring/clusterring/tools/load/internal/points"
	"github.com/clusterring/clusterring/tools/load/internal/result"
	"github.com/clusterring/clusterring/tools/load/internal/shards"
	"github.com/clusterring/clusterring/tools/load/internal/target"
)

// Scale sets the size and duration of measurements.
type Scale string

// Scales.
const (
	// Small runs every measurement, in 10 minutes.
	Small Scale = "small"
	// Full gives meaningful figures, in 35 minutes on 2 cores.
	Full Scale = "full"
	// Million is Full, with a million objects in the measurement with the most objects. It takes 20 more minutes and 16
	// GiB of memory.
	Million Scale = "million"
)

// Bench provides what measurements need. Each measurement gets its own.
type Bench struct {
	// Local is the system to measure: its clients, and its processes, which are ready.
	Local *target.Local
	// Objects writes objects with administrator rights over several connections.
	Objects *objects.Client
	Scale   Scale
	// Clock is the real clock, except in tests.
	Clock clock.WithTicker
	// Points are the points of this run and earlier ones.
	Points *points.File

	measurement *Measurement
	rounds      int
	only        *regexp.Regexp
	last        bool      // the control plane is discarded afterwards
	deadline    time.Time // until when another round may end; zero for always
	progress    io.Writer
	found       *found
	cleanups    *cleanups
}

// Pick returns small at scale [Small], and full otherwise.
func Pick[T any](b *Bench, small, full T) T {
	if b.Scale == Small {
		return small
	}

	return full
}

// Wants reports whether one of the ids of rows or charts is selected.
func (b *Bench) Wants(ids ...string) bool { return wants(b.only, ids) }

// Asked reports whether one of the ids is selected explicitly, not only because all are.
func (b *Bench) Asked(ids ...string) bool { return b.only != nil && wants(b.only, ids) }

// Repeat returns how often each trial shall be repeated.
func (b *Bench) Repeat() int { return b.rounds }

// Once measures and keeps a point, unless it is there.
func (b *Bench) Once(key points.Key, measure func() (points.Point, error)) error {
	if b.Points.Has(key) {
		return nil
	}

	p, err := measure()
	if err != nil {
		return fmt.Errorf("%s, %d: %w", key.Experiment, key.X, err)
	}

	p.Key = key
	b.Progress("%v", p)

	return b.Points.Add(p)
}

// Pause waits for a time, and returns the cause if ctx ends before.
func (b *Bench) Pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-b.Clock.After(d):
		return nil
	}
}

// Fleet creates a ring with so many shards. The shards come first, so that the ring knows all of them at once. A ring
// without a namespace gets a new one of its name. The ring and its Leases are removed with the bench.
func (b *Bench) Fleet(ctx context.Context, ring shards.Ring, size int) (f *shards.Fleet, err error) {
	if ring.Namespace == "" {
		if ring.Namespace, err = b.Local.Namespace(ctx, ring.Name); err != nil {
			return nil, err
		}
	}

	f = shards.NewFleet(ring, b.Objects, b.Local.Client, b.Clock)
	b.Remove(f.Close)

	if _, err := f.Join(ctx, size); err != nil {
		return nil, err
	}

	err = f.Declare(ctx)

	return f, err
}

// Progress prints a progress line.
func (b *Bench) Progress(format string, args ...any) {
	fmt.Fprintf(b.progress, "    "+format+"\n", args...)
}

// Measurement measures one or more rows and charts.
type Measurement struct {
	// Name is used in progress lines and names of profiles: letters, digits, and dashes.
	Name string
	// Parts are its experiments, in the order in which they run.
	Parts []Part
	// Small and Full limit the time at these scales; 0 means no limit. To keep the limit, fewer rounds are made, at least
	// one.
	Small, Full time.Duration
}

func (m *Measurement) ids() (ids []string) {
	for _, p := range m.Parts {
		ids = append(ids, p.Rows...)
	}

	return ids
}

// Plan selects and runs measurements.
type Plan struct {
	Measurements []Measurement
	// Only selects measurements by the ids of their rows and charts; nil selects all.
	Only *regexp.Regexp
	// Rounds is the number of rounds after a warm-up that does not count; 0 means the default of the scale.
	Rounds int
	// Profile is called when a measurement begins; the returned function is called when it ends. It may be nil.
	Profile func(ctx context.Context, name string) (stop func() error)
	// Progress gets a line for each measurement and each round.
	Progress io.Writer
}

// Selected returns the measurements that Only selects. It returns an error if there are none.
func (p *Plan) Selected() ([]Measurement, error) {
	selected := slices.DeleteFunc(slices.Clone(p.Measurements), func(m Measurement) bool {
		return !wants(p.Only, m.ids())
	})
	if len(selected) == 0 {
		var ids []string
		for _, m := range p.Measurements {
			ids = append(ids, m.ids()...)
		}

		return nil, fmt.Errorf("no measurement has an id that matches %q; the ids are %v", p.Only, ids)
	}

	return selected, nil
}

// Do runs all selected measurements with the given bench. It returns the results also if there is an error, which joins
// the errors of the failed measurements.
func (p *Plan) Do(ctx context.Context, with Bench) (all result.Results, err error) {
	selected, err := p.Selected()
	if err != nil {
		return all, err
	}

	var errs []error

	for i, m := range selected {
		fmt.Fprintf(p.Progress, "==> %d/%d %s\n", i+1, len(selected), m.Name)
		with.last = i == len(selected)-1
		found, err := p.one(ctx, m, with)

		all.Rows, all.Charts = append(all.Rows, found.Rows...), append(all.Charts, found.Charts...)

		if ctx.Err() != nil {
			return all, context.Cause(ctx)
		}

		if err != nil {
			fmt.Fprintf(p.Progress, "    failed: %s\n", err)
			errs = append(errs, fmt.Errorf("%s: %w", m.Name, err))
		}
	}

	return all, errors.Join(errs...)
}

func (p *Plan) one(ctx context.Context, m Measurement, b Bench) (all *found, err error) {
	all = &found{}
	b.measurement, b.only, b.progress, b.found, b.cleanups = &m, p.Only, p.Progress, all, &cleanups{}

	b.rounds = p.Rounds
	if b.rounds == 0 {
		const small, full = 3, 5

		b.rounds = Pick(&b, small, full)
	}

	began := b.Clock.Now()
	if budget := Pick(&b, m.Small, m.Full); budget > 0 {
		b.deadline = began.Add(budget)
	}

	if p.Profile != nil {
		stop := p.Profile(ctx, m.Name)
		defer func() { err = errors.Join(err, stop()) }()
	}

	err = errors.Join(b.Parts(ctx, m.Parts...), all.err)
	b.Progress("took %.1f s", b.Clock.Since(began).Seconds())

	return all, err
}

func wants(only *regexp.Regexp, ids []string) bool {
	return only == nil || slices.ContainsFunc(ids, only.MatchString)
}

// found is what a measurement has reported.
type found struct {
	result.Results

	err error
}

// Figure is a row, and what it shows of a round.
type Figure[T any] struct {
	Row result.Row
	Of  func(T) float64
}

// Itself is the figure of rounds that are measured in one number.
func Itself(v float64) float64 { return v }

// Report reports rows. It drops those that are not wanted.
func (b *Bench) Report(rows ...result.Row) {
	for _, row := range rows {
		if !b.Wants(row.ID) {
			continue
		}

		err := row.Check()
		if !slices.Contains(b.measurement.ids(), row.ID) {
			err = fmt.Errorf("row %q is not announced", row.ID)
		}

		if err != nil {
			b.found.err = errors.Join(b.found.err, err)
			continue
		}

		median, low, high := row.Result()
		b.Progress("%s: %.3g (%.3g to %.3g)", row.ID, median, low, high)
		b.found.Rows = append(b.found.Rows, row)
	}
}

// Draw draws a chart. It drops one that is not wanted or has no points.
func (b *Bench) Draw(c result.Chart) {
	if b.Wants(c.ID) && slices.ContainsFunc(c.Lines, func(l result.Line) bool { return len(l.Points) > 0 }) {
		b.found.Charts = append(b.found.Charts, c)
	}
}

// Grow adds the medians of values and of their floors, if there are any, to a chart that shows how a cost grows with x.
// It begins the chart if necessary, and drops it if it is not wanted.
func (b *Bench) Grow(c result.Chart, x int, values, floors []float64) {
	if !b.Wants(c.ID) {
		return
	}

	at := slices.IndexFunc(b.found.Charts, func(begun result.Chart) bool { return begun.ID == c.ID })
	if at < 0 {
		at, c.Logarithmic = len(b.found.Charts), true
		c.Lines = []result.Line{{Name: "median of the rounds"}, {Name: "median of the floor in these rounds", Dashed: true}}
		b.found.Charts = append(b.found.Charts, c)
	}

	for i, figures := range [][]float64{values, floors} {
		if median, _, _ := result.Spread(figures); len(figures) > 0 {
			l := &b.found.Charts[at].Lines[i]
			l.Points = append(l.Points, result.XY{X: float64(x), Y: median})
		}
	}
}

// openers is the number of parts that [Bench.Each] makes or cleans up at a time.
const openers = 8

// cleanups are what a bench has to clean up.
type cleanups struct {
	mu  sync.Mutex
	all []func(context.Context) error
}

// Cleanup has clean called when the part of the measurement that has this bench ends, last registered first.
func (b *Bench) Cleanup(clean func(context.Context) error) {
	b.cleanups.mu.Lock()
	defer b.cleanups.mu.Unlock()

	b.cleanups.all = append(b.cleanups.all, clean)
}

// Remove is Cleanup for what disappears with the control plane, and is not called if that is discarded after this part.
func (b *Bench) Remove(clean func(context.Context) error) {
	if !b.last {
		b.Cleanup(clean)
	}
}

// RemoveAll removes all objects of some kinds in a namespace, as [Bench.Remove] does.
func (b *Bench) RemoveAll(namespace string, kinds ...objects.Kind) {
	for _, kind := range kinds {
		b.Remove(func(ctx context.Context) error {
			return b.Objects.DeleteAll(ctx, objects.Selection{Kind: kind, Namespace: namespace})
		})
	}
}

// Make creates an object, and removes it as [Bench.Remove] does.
func (b *Bench) Make(ctx context.Context, o client.Object) error {
	if err := b.Local.Client.Create(ctx, o); err != nil {
		return fmt.Errorf("create %T %s: %w", o, o.GetName(), err)
	}
	b.Remove(func(ctx context.Context) error { return client.IgnoreNotFound(b.Local.Client.Delete(ctx, o)) })

	return nil
}

// cleanUp cleans up, also if ctx has ended.
func (b *Bench) cleanUp(ctx context.Context) error {
	var errs []error
	for _, clean := range slices.Backward(b.cleanups.all) {
		errs = append(errs, clean(context.WithoutCancel(ctx)))
	}

	return errors.Join(errs...)
}

// Each calls do for each of n parts, several at a time. They are cleaned up with this bench, several at a time.
func (b *Bench) Each(ctx context.Context, n int, do func(b *Bench, i int) error) error {
	parts := make([]*Bench, n)
	for i := range parts {
		part := *b
		part.cleanups = &cleanups{}
		parts[i] = &part
	}
	b.Cleanup(func(ctx context.Context) error {
		errs := make([]error, n)

		return errors.Join(objects.Each(ctx, n, openers, func(ctx context.Context, i int) error {
			errs[i] = parts[i].cleanUp(ctx)
			return nil
		}), errors.Join(errs...))
	})

	return objects.Each(ctx, n, openers, func(_ context.Context, i int) error { return do(parts[i], i) })
}
