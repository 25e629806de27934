// Package run makes measurements one after the other: in rounds, each side by side with its floor, within a budget of time.
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

// Scale is how large and how long measurements are.
type Scale string

// Scales.
const (
	// Small shows in 4 minutes that everything can be measured.
	Small Scale = "small"
	// Full gives figures to go by, in 25 minutes on 2 cores.
	Full Scale = "full"
	// Million is Full, but where most objects are measured, there are a million: 10 more minutes, and 16 GiB of memory.
	Million Scale = "million"
)

// Bench is what measurements work with. Each measurement gets one of its own.
type Bench struct {
	// System is what is measured; its services are ready.
	System *target.System
	// Local is the same, where all of it are processes of this machine; nil for a cluster, which measurements get that can do without.
	Local *target.Local
	// Objects writes as an administrator, over several connections.
	Objects *objects.Client
	Scale   Scale
	// Clock is the real one, but for tests.
	Clock clock.WithTicker

	name     string
	rounds   int
	times    int // of that many rounds one is shown; 0 means each
	only     *regexp.Regexp
	last     bool
	deadline time.Time // until when another round may end; zero for always
	progress io.Writer
}

// Pick returns what is meant for the bench's scale.
func Pick[T any](b *Bench, small, full T) T {
	if b.Scale == Small {
		return small
	}
	return full
}

// Wants reports whether one of the ids, of rows or series, was asked for.
func (b *Bench) Wants(ids ...string) bool { return wants(b.only, ids) }

// Asked reports whether one of the ids was asked for by name, and not only because all were.
func (b *Bench) Asked(ids ...string) bool { return b.only != nil && wants(b.only, ids) }

// Last says that the control plane is thrown away after this measurement, so that nothing needs to be removed.
func (b *Bench) Last() bool { return b.last }

// More returns the bench for a part of a measurement that another part follows, unless that is the last: what it makes is removed.
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

// Progress shows a line to whoever waits.
func (b *Bench) Progress(format string, args ...any) {
	fmt.Fprintf(b.progress, "    "+format+"\n", args...)
}

// Measurement is one or more rows that are measured together, because they come from the same experiment.
type Measurement struct {
	// Name says in progress and names of profiles what it is: letters, digits and dashes.
	Name string
	// IDs are those of all rows and series that it can make.
	IDs []string
	// Budget is how long it should take at most, by scale; that of Full is that of Million, too, unless it has its own. Rounds are left
	// out, down to one, to keep it.
	Budget map[Scale]time.Duration
	// ClusterToo says that it can measure a cluster; others need processes on this machine.
	ClusterToo bool
	// Run returns at least the rows and series that the bench wants; others are dropped. When it returns, the services must be as before,
	// and what it created must be gone, unless [Bench.Last] reports true.
	Run func(ctx context.Context, b *Bench) ([]result.Row, []result.Series, error)
}

// Plan is what is to be measured, and how.
type Plan struct {
	Measurements []Measurement
	// Only selects measurements by the ids of their rows and series; nil selects all.
	Only *regexp.Regexp
	// Rounds is how often each side is measured, after a first time that does not count; 0 means what the scale says.
	Rounds int
	// Profile is called when a measurement begins, and what it returns when it ends; nil for neither.
	Profile func(ctx context.Context, name string) (stop func() error)
	// Progress gets a line for each measurement and each round.
	Progress io.Writer
}

// Selected returns the measurements that Only selects. It is an error if there is none.
func (p *Plan) Selected() ([]Measurement, error) {
	selected := slices.DeleteFunc(slices.Clone(p.Measurements), func(m Measurement) bool { return !wants(p.Only, m.IDs) })
	if len(selected) == 0 {
		var ids []string
		for _, m := range p.Measurements {
			ids = append(ids, m.IDs...)
		}
		return nil, fmt.Errorf("no measurement makes %q; there are %v", p.Only, ids)
	}
	return selected, nil
}

// Do makes all selected measurements, with the tools of the bench given. It returns what has been measured even if there is an
// error: that of each measurement that could not be made.
func (p *Plan) Do(ctx context.Context, with Bench) (rows []result.Row, series []result.Series, err error) {
	selected, err := p.Selected()
	if err != nil {
		return nil, nil, err
	}
	var errs []error
	for i, m := range selected {
		if with.Local == nil && !m.ClusterToo {
			fmt.Fprintf(p.Progress, "==> %d/%d %s: left out, it needs processes on this machine\n", i+1, len(selected), m.Name)
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
