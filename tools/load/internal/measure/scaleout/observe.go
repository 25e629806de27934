package scaleout

import (
	"context"
	"errors"
	"iter"
	"strings"
	"time"

	"github.com/clusterring/clusterring/tools/lab/continuity"
	"github.com/clusterring/clusterring/tools/load/internal/capacity"
	"github.com/clusterring/clusterring/tools/load/internal/points"
	"github.com/clusterring/clusterring/tools/load/internal/result"
	"github.com/clusterring/clusterring/tools/load/internal/run"
	"github.com/clusterring/clusterring/tools/load/internal/usage"
	"github.com/clusterring/clusterring/tools/testkit/record"
)

const (
	// overTime ends the names of experiments whose points are those of periods: X is the second in which one ended.
	overTime = "-over-time"
	// struckAt ends the names of those about strikes: X counts them, and the value is the second.
	struckAt = "-strikes"
	// tick is a period of an experiment of a quarter of an hour, or all of a small one.
	tick = 10 * time.Second
	// late is the part of the changes of which the slowest is shown.
	late = 0.99
)

// observation is how a fleet under load is observed.
type observation struct {
	// key is that of the points, but for X.
	key points.Key
	// long is how long it goes on, and every how long a period is.
	long, every time.Duration
	// strikes are when strike is called, or as soon as it may be.
	strikes iter.Seq[time.Duration]
	strike  func() error
}

// observed is what was seen of a fleet under load.
type observed struct {
	seen    capacity.Sample
	took    []time.Duration // from a change until it is done
	spent   map[string]float64
	strikes int
}

// observe observes the fleet, and keeps a point of each period.
func (f *fleet) observe(ctx context.Context, o observation) (whole observed, err error) {
	first, err := f.sample(ctx)

	usedFirst, failed := f.bench.Local.Usage().Read()
	if err := errors.Join(err, failed); err != nil {
		return whole, err
	}

	f.Tracker.Took() // of earlier changes

	before, usedBefore := first, usedFirst
	elapsed := func() time.Duration { return record.Now() - first.At }
	pause := func(until time.Duration) error { return f.bench.Pause(ctx, until-elapsed()) }

	due, stop := iter.Pull(o.strikes)
	defer stop()

	next, more := due()

	for end := o.every; end <= o.long; end += o.every {
		if elapsed() >= end && end < o.long {
			continue // a strike has taken so long
		}

		struck := 0

		for ; more && max(next, elapsed()) < end; next, more = due() {
			if err := pause(next); err != nil {
				return whole, err
			}

			struck++

			at := points.Key{Experiment: o.key.Experiment + struckAt, Sharder: o.key.Sharder, Round: o.key.Round}
			at.X = whole.strikes + struck
			p := points.Point{Key: at, Values: map[string]float64{strikes: elapsed().Seconds()}}

			if err := errors.Join(f.bench.Points.Add(p), o.strike()); err != nil {
				return whole, err
			}
		}

		err := pause(end)
		now, failed := f.sample(ctx)

		used, again := f.bench.Local.Usage().Read()
		if err := errors.Join(err, failed, again); err != nil {
			return whole, err
		}

		took, seen := f.Tracker.Took(), now.Minus(before)
		p := points.Point{Key: o.key, Values: f.spent(usage.Difference(usedBefore, used), seen.At)}
		p.X = int(end.Seconds())
		p.Values[inTime] = percent(seen.AllBegun())

		if len(took) > 0 {
			p.Values[doneP99] = continuity.Quantile(took, late).Seconds()
		}

		if err := f.bench.Points.Add(p); err != nil {
			return whole, err
		}

		before, usedBefore = now, used
		whole.strikes += struck
		whole.took = append(whole.took, took...)
		whole.seen, whole.spent = now.Minus(first), f.spent(usage.Difference(usedFirst, used), now.At-first.At)
	}

	return whole, nil
}

// percent returns the part of the counts within their limit: all if there are none.
func percent(c continuity.Counts) float64 {
	if c.All == 0 {
		return 100 //nolint:mnd // percent
	}

	return 100 * float64(c.Within) / float64(c.All)
}

// What kinds of processes have used.
const (
	coresOf, mebibytesOf, trafficOf = "cores of ", "MiB of ", "KiB/s of "
	shardsKind                      = "shards"
)

// spent returns what kinds of processes have used in a period: all shards together, and each other process.
func (f *fleet) spent(used map[string]usage.Usage, period time.Duration) map[string]float64 {
	values := map[string]float64{}

	for process, u := range used {
		if strings.HasPrefix(process, f.Name+"-pod-") {
			process = shardsKind
		}

		values[coresOf+process] += u.CPU.Seconds() / period.Seconds()
		values[mebibytesOf+process] += float64(u.Memory) / (1 << 20)
		values[trafficOf+process] += float64(u.Received+u.Sent) / (1 << 10) / period.Seconds()
	}

	return values
}

// line returns a line through the medians of a figure.
func line(b *run.Bench, name string, key points.Key, value string) result.Line {
	l := result.Line{Name: name}

	for _, x := range b.Points.Xs(key.Experiment, key.Sharder) {
		if values, invalid := b.Points.Of(key.Experiment, key.Sharder, x, value); len(values) > 0 {
			median, _, _ := result.Spread(values)
			l.Points = append(l.Points, result.XY{X: float64(x), Y: median, Hollow: len(invalid) == len(values)})
		}
	}

	return l
}
