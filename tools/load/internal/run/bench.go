// Package run runs measurements one after the other: in rounds that alternate with their floor, within a time budget.
package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"time"

	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/tools/load/internal/objects"
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
	// Full gives meaningful figures, in 32 minutes on 2 cores.
	Full Scale = "full"
	// Million is Full, with a million objects in the measurement with the most objects. It takes 10 more minutes and 16 GiB of memory.
	Million Scale = "million"
)

// Bench provides what measurements need. Each measurement gets its own.
type Bench struct {
	// System and Local are the system to measure: its clients, and its processes, which are ready.
	System *target.System
	Local  *target.Local
	// Objects writes objects with administrator rights over several connections.
	Objects *objects.Client
	Scale   Scale
	// Clock is the real clock, except in tests.
	Clock clock.WithTicker

	measurement *Measurement
	rounds      int
	times       int // one of as many rounds is shown; 0 means all
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

// Wants reports whether one of the ids of rows or series is selected.
func (b *Bench) Wants(ids ...string) bool { return wants(b.only, ids) }

// Asked reports whether one of the ids is selected explicitly, not only because all are.
func (b *Bench) Asked(ids ...string) bool { return b.only != nil && wants(b.only, ids) }

// Pause waits for a time, and returns the cause if ctx ends before.
func (b *Bench) Pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-b.Clock.After(d):
		return nil
	}
}

// Fleet creates a ring with so many shards. The shards come first, so that the ring knows all of them at once. A ring without a namespace
// gets a new one of its name. The ring and its Leases are removed with the bench.
func (b *Bench) Fleet(ctx context.Context, ring shards.Ring, size int) (f *shards.Fleet, err error) {
	if ring.Namespace == "" {
		if ring.Namespace, err = b.System.Namespace(ctx, ring.Name); err != nil {
			return nil, err
		}
	}

	f = shards.NewFleet(ring, b.Objects, b.System.Client, b.Clock)
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

// Measurement measures one or more rows and series.
type Measurement struct {
	// Name is used in progress lines and names of profiles: letters, digits, and dashes.
	Name string
	// Parts are its experiments, in the order in which they run.
	Parts []Part
	// Small and Full limit the time at these scales; 0 means no limit. To keep the limit, fewer rounds are made, at least one.
	Small, Full time.Duration
}

func (m *Measurement) ids() (ids []string) {
	for _, p := range m.Parts {
		ids = append(ids, p.IDs()...)
	}

	return ids
}

// Plan selects and runs measurements.
type Plan struct {
	Measurements []Measurement
	// Only selects measurements by the ids of their rows and series; nil selects all.
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
	selected := slices.DeleteFunc(slices.Clone(p.Measurements), func(m Measurement) bool { return !wants(p.Only, m.ids()) })
	if len(selected) == 0 {
		var ids []string
		for _, m := range p.Measurements {
			ids = append(ids, m.ids()...)
		}

		return nil, fmt.Errorf("no measurement has an id that matches %q; the ids are %v", p.Only, ids)
	}

	return selected, nil
}

// Do runs all selected measurements with the given bench. It returns the results also if there is an error, which joins the errors of the
// failed measurements.
func (p *Plan) Do(ctx context.Context, with Bench) (rows []result.Row, series []result.Series, err error) {
	selected, err := p.Selected()
	if err != nil {
		return nil, nil, err
	}

	var errs []error

	for i, m := range selected {
		fmt.Fprintf(p.Progress, "==> %d/%d %s\n", i+1, len(selected), m.Name)
		with.last = i == len(selected)-1
		found, err := p.one(ctx, m, with)

		rows, series = append(rows, found.rows...), append(series, found.drawn()...)
		if ctx.Err() != nil {
			return rows, series, context.Cause(ctx)
		}

		if err != nil {
			fmt.Fprintf(p.Progress, "    failed: %s\n", err)
			errs = append(errs, fmt.Errorf("%s: %w", m.Name, err))
		}
	}

	return rows, series, errors.Join(errs...)
}

func (p *Plan) one(ctx context.Context, m Measurement, b Bench) (all *found, err error) {
	all = &found{}
	for _, part := range m.Parts {
		all.series = append(all.series, part.Series...)
	}

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
