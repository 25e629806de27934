package scaleout

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/clusterring/clusterring/tools/lab/continuity"
	"github.com/clusterring/clusterring/tools/load/internal/capacity"
	"github.com/clusterring/clusterring/tools/load/internal/crew"
	"github.com/clusterring/clusterring/tools/load/internal/run"
	"github.com/clusterring/clusterring/tools/load/internal/usage"
	"github.com/clusterring/clusterring/tools/testkit/process"
	"github.com/clusterring/clusterring/tools/testkit/record"
)

// fleet is a ring whose shards are under load.
type fleet struct {
	*crew.Crew // nil until something is to be measured
	capacity.Load

	bench   *run.Bench
	sharder string
	// pods are those that run. In lives is what each process has begun, also of those that are gone.
	pods  []string
	lives []life
	// used is what all processes had used when a sample was taken last, or a while ago, and busiest the most cores that
	// they have used since a trial began.
	used    map[string]usage.Usage
	usedAt  time.Duration
	busiest float64
}

type life struct {
	of    *process.Process
	begun continuity.Counts
}

// newFleet returns a fleet that has not formed yet. Rounds differ by what chance decides.
func newFleet(b *run.Bench, sharder string, round int) *fleet {
	f := &fleet{bench: b, sharder: sharder}
	f.Load = capacity.Load{
		Clock: b.Clock, Tracker: continuity.NewTracker(capacity.DoneWithin), Objects: b.Objects, Pause: b.Pause,
		Metrics: f.metrics, Sample: f.sample, Rng: rand.New(rand.NewPCG(1, uint64(round))), //nolint:gosec // no secret, and not negative
	}

	return f
}

// metrics returns the metrics of each shard.
func (f *fleet) metrics(ctx context.Context) (texts []string, err error) {
	for _, pod := range f.pods {
		text, more := f.bench.Local.Serves(ctx, f.Full(pod))
		texts, err = append(texts, text), errors.Join(err, more)
	}

	return texts, err
}

// sample returns the counts of the changes so far: of those that have begun by process.
func (f *fleet) sample(ctx context.Context) (s capacity.Sample, err error) {
	s.At = record.Now()
	s.Done, _, _ = f.Tracker.Totals()

	if err := f.look(s.At); err != nil {
		return s, err
	}

	texts, err := f.metrics(ctx)
	if err != nil {
		return s, err
	}

	for i, pod := range f.pods {
		of := f.bench.Local.Process(f.Full(pod))

		at := slices.IndexFunc(f.lives, func(l life) bool { return l.of == of })
		if at < 0 {
			at, f.lives = len(f.lives), append(f.lives, life{of: of})
		}

		if f.lives[at].begun, err = capacity.Begun(texts[i]); err != nil {
			return s, err
		}
	}

	for _, l := range f.lives {
		s.Begun = append(s.Begun, l.begun)
	}

	return s, nil
}

// look notes how many cores were busy since the last look, unless that was just now.
func (f *fleet) look(now time.Duration) error {
	if f.used != nil && now-f.usedAt < tick/2 {
		return nil
	}

	used, err := f.bench.Local.Usage().Read()
	busy := 0.0

	for _, u := range usage.Difference(f.used, used) {
		busy += u.CPU.Seconds() / (now - f.usedAt).Seconds()
	}

	f.used, f.usedAt, f.busiest = used, now, max(f.busiest, busy)

	return err
}

// judged measures something, and returns why nothing can be concluded from it.
func (f *fleet) judged(ctx context.Context, measure func() error) (why []string, err error) {
	if err := errors.Join(f.Rest(ctx), f.bench.Local.Calm(ctx)); err != nil {
		return nil, err
	}

	before, err := f.Refused(ctx)
	if err != nil {
		return nil, err
	}

	f.Offered, f.used, f.busiest = nil, nil, 0

	if err := errors.Join(f.look(record.Now()), measure()); err != nil {
		return nil, err
	}

	after, err := f.Refused(ctx)

	return capacity.Invalid(f.Offered, f.busiest, after-before), err
}
