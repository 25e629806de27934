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
	// Small runs every measurement, in 4 minutes.
	Small Scale = "small"
	// Full gives meaningful figures, in 25 minutes on 2 cores.
	Full Scale = "full"
	// Million is Full, with a million objects in the measurement with the most objects. It takes 10 more minutes and 16 GiB of memory.
	Million Scale = "million"
)

// Bench provides what measurements need. Each measurement gets its own.
type Bench struct {
	// System is the system to measure. Its services are ready.
	System *target.System
	// Local is the same system if it runs on this machine. It is nil for a cluster, which only measurements with ClusterToo receive.
	Local *target.Local
	// Objects writes objects with administrator rights over several connections.
	Objects *objects.Client
	Scale   Scale
	// Clock is the real clock, except in tests.
	Clock clock.WithTicker

	name     string
	rounds   int
	times    int // one of as many rounds is shown; 0 means all
	only     *regexp.Regexp
	last     bool
	deadline time.Time // until when another round may end; zero for always
	progress io.Writer
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

// Last reports whether the control plane is discarded after this measurement, so that nothing has to be removed.
func (b *Bench) Last() bool { return b.last }

// More returns the bench for a part of a measurement. Only the last part may leave objects behind.
func (b *Bench) More(last bool) *Bench {
	part := *b
	part.last = b.last && last

	return &part
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

// Concurrency is how many requests measurements send at a time: as many as the rebalancer sends by default.
const Concurrency = 16

// Fleet returns the shards of a ring, none yet. It declares nothing. If the ring has no namespace, it gets a new one of its name.
func (b *Bench) Fleet(ctx context.Context, ring shards.Ring) (f *shards.Fleet, err error) {
	if ring.Namespace == "" {
		if ring.Namespace, err = b.System.Namespace(ctx, ring.Name); err != nil {
			return nil, err
		}
	}

	return shards.NewFleet(shards.Options{Objects: b.Objects, Client: b.System.Client, Ring: ring, Concurrency: Concurrency, Now: b.Clock.Now}), nil
}

// Progress prints a progress line.
func (b *Bench) Progress(format string, args ...any) {
	fmt.Fprintf(b.progress, "    "+format+"\n", args...)
}

// Measurement measures one or more rows and series in one experiment.
type Measurement struct {
	// Name is used in progress lines and names of profiles: letters, digits, and dashes.
	Name string
	// IDs are the ids of all rows and series that it can measure.
	IDs []string
	// Budget limits the time by scale. Million defaults to the budget of Full. To keep the budget, fewer rounds are made, at least one.
	Budget map[Scale]time.Duration
	// ClusterToo is true if it can also measure a cluster. Others need processes on this machine.
	ClusterToo bool
	// Run returns at least the rows and series that the bench wants; others are dropped. When it returns, the services must be as before,
	// and what it created must be gone, unless [Bench.Last] reports true.
	Run func(ctx context.Context, b *Bench) ([]result.Row, []result.Series, error)
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
	selected := slices.DeleteFunc(slices.Clone(p.Measurements), func(m Measurement) bool { return !wants(p.Only, m.IDs) })
	if len(selected) == 0 {
		var ids []string
		for _, m := range p.Measurements {
			ids = append(ids, m.IDs...)
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
		if with.Local == nil && !m.ClusterToo {
			fmt.Fprintf(p.Progress, "==> %d/%d %s: skipped, it needs processes on this machine\n", i+1, len(selected), m.Name)
			continue
		}
		fmt.Fprintf(p.Progress, "==> %d/%d %s\n", i+1, len(selected), m.Name)
		with.last = i == len(selected)-1 && with.Local != nil
		newRows, newSeries, err := p.one(ctx, m, with)

		rows, series = append(rows, newRows...), append(series, newSeries...)
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

func (p *Plan) one(ctx context.Context, m Measurement, b Bench) (rows []result.Row, series []result.Series, err error) {
	b.name, b.only, b.progress = m.Name, p.Only, p.Progress

	b.rounds = p.Rounds
	if b.rounds == 0 {
		const small, full = 3, 5

		b.rounds = Pick(&b, small, full)
	}

	began := b.Clock.Now()

	budget, ok := m.Budget[b.Scale]
	if !ok && b.Scale == Million {
		budget = m.Budget[Full]
	}

	if budget > 0 {
		b.deadline = began.Add(budget)
	}

	if p.Profile != nil {
		stop := p.Profile(ctx, m.Name)
		defer func() { err = errors.Join(err, stop()) }()
	}

	rows, series, err = m.Run(ctx, &b)
	rows = slices.DeleteFunc(rows, func(r result.Row) bool { return !b.Wants(r.ID) })
	series = slices.DeleteFunc(series, func(s result.Series) bool { return !b.Wants(s.ID) })

	for i := range rows {
		if err := rows[i].Check(); err != nil {
			return nil, nil, err
		}

		median, low, high := rows[i].Result()
		b.Progress("%s: %.3g (%.3g to %.3g)", rows[i].ID, median, low, high)
	}
	b.Progress("took %.1f s", b.Clock.Since(began).Seconds())

	return rows, series, err
}

func wants(only *regexp.Regexp, ids []string) bool {
	return only == nil || slices.ContainsFunc(ids, only.MatchString)
}
