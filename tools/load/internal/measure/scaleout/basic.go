package scaleout

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/clusterring/clusterring/tools/lab/continuity"
	"github.com/clusterring/clusterring/tools/load/internal/capacity"
	"github.com/clusterring/clusterring/tools/load/internal/crew"
	"github.com/clusterring/clusterring/tools/load/internal/objects"
	"github.com/clusterring/clusterring/tools/load/internal/points"
	"github.com/clusterring/clusterring/tools/load/internal/result"
	"github.com/clusterring/clusterring/tools/load/internal/run"
	"github.com/clusterring/clusterring/tools/load/internal/target"
	"github.com/clusterring/clusterring/tools/testkit/record"
)

// The basic experiment of the thesis: every second 12 Websites come and 2 go, and each is changed once a minute, for 15
// minutes. There are 3 shards of 15 workers, or one process of 50.
const (
	basic                       = "basic"
	basicShards                 = 3
	basicWorkers, singleWorkers = 15, 50
	created, deleted, perMinute = 12, 2, 60.0
	basicLong                   = 15 * time.Minute
	// untouched is how many of the newest and the oldest Websites are not changed.
	untouched = 50
)

// The figures of a run: the cores that the services, and they and the shards use.
const (
	servicesCores = "cores of the services"
	allCores      = "cores of services and shards"
)

// Basic returns the measurement of what shards cost beside one process, under the load of the thesis.
func Basic() []run.Measurement {
	m := run.Measurement{Name: basic}
	for _, sharder := range []string{None, Embedded, Services} { // the last one reports all
		m.Parts = append(m.Parts, run.Part{
			Rows:     []string{"basic-services-cpu", "basic-cpu", "basic-embedded-cpu", "basic-done"},
			NotSmall: sharder == Embedded,
			Run:      func(ctx context.Context, b *run.Bench) error { return measureBasic(ctx, b, sharder) },
		})
	}

	return []run.Measurement{m}
}

func measureBasic(ctx context.Context, b *run.Bench, sharder string) error {
	for round := range b.Repeat() {
		key := points.Key{Experiment: basic, Sharder: sharder, X: basicShards, Round: round}

		err := b.Parts(ctx, run.Part{Run: func(ctx context.Context, b *run.Bench) error {
			u := &users{fleet: newFleet(b, sharder, round)}

			return b.Once(key, func() (points.Point, error) { return u.live(ctx, key) })
		}})
		if err != nil {
			return err
		}
	}

	if sharder == Services {
		reportBasic(b)
	}

	return nil
}

func reportBasic(b *run.Bench) {
	of := func(sharder, value string) []float64 {
		values, _ := b.Points.Of(basic, sharder, basicShards, value)
		return values
	}
	single, _, _ := result.Spread(of(None, allCores))
	more := func(sharder string) []float64 {
		return result.Column(of(sharder, allCores), func(v float64) float64 { return v / single })
	}
	notes := []string{fmt.Sprintf("As in the thesis: %d Websites come and %d go each second, each is changed once a minute, for %s. %d "+
		"shards of %d workers, beside one process of %d. Prior art is version 0.3.0 on a cluster of 8-core nodes.", created, deleted,
		basicLong, basicShards, basicWorkers, singleWorkers)}

	done := result.Row{
		ID: "basic-done", Title: "time until a change is done, 99th percentile, under the load of the thesis", Unit: "s",
		Values: of(Services, doneP99), Judge: result.JudgeValue, Target: result.Max(capacity.DoneWithin.Seconds()),
		Notes: notes,
	}
	if one := of(None, doneP99); len(one) == len(done.Values) {
		done.Floor, done.FloorTitle = one, "one process"
	}

	b.Report(done, result.Row{
		ID: "basic-services-cpu", Title: "cores that the services use under the load of the thesis", Unit: "cores",
		Values: of(Services, servicesCores), Target: result.Max(0.015), PriorArt: "0.054", Notes: notes, //nolint:mnd // cores
	}, result.Row{
		ID: "basic-cpu", Title: "CPU of services and shards / CPU of one process, under the load of the thesis", Unit: "×",
		Values: more(Services), Target: result.Max(1.2), PriorArt: "1.36", Notes: notes, //nolint:mnd // a fifth more
	})

	if embedded := more(Embedded); len(embedded) > 0 {
		b.Report(result.Row{
			ID: "basic-embedded-cpu", Title: "CPU of shards, one of which shards / CPU of one process, under the load of the thesis",
			Unit: "×", Values: embedded, PriorArt: "1.44", Notes: notes,
		})
	}

	for _, c := range []struct{ id, title, of, unit string }{
		{"basic-cores", "CPU by process, under the load of the thesis", coresOf, "cores"},
		{"basic-memory", "Memory by process, under the load of the thesis", mebibytesOf, "MiB"},
		{"basic-traffic", "Traffic by process, under the load of the thesis", trafficOf, "KiB/s"},
	} {
		chart := result.Chart{ID: c.id, Title: c.title, X: "seconds", Y: c.unit, Stacked: true}
		key := points.Key{Experiment: basic + overTime, Sharder: Services}

		for _, process := range append([]string{shardsKind}, target.Services...) {
			chart.Lines = append(chart.Lines, line(b, process, key, c.of+process))
		}

		b.Draw(chart)
	}
}

func never(func(time.Duration) bool) {}

// users make and remove Websites, and change them.
type users struct {
	*fleet

	made, gone atomic.Int64
}

func (u *users) live(ctx context.Context, key points.Key) (p points.Point, err error) {
	o := crew.Options{Name: fmt.Sprintf("%s-%s-%d", basic, u.sharder, key.Round), Shards: basicShards, Unrecorded: true}
	workers := basicWorkers

	if u.sharder == None {
		o.Shards, workers = 1, singleWorkers
	}

	if err := u.form(ctx, workers, 0, o); err != nil {
		return p, err
	}

	var whole observed

	p.Invalid, err = u.judged(ctx, func() error {
		return u.Under(ctx, func() (err error) {
			whole, err = u.observe(ctx, observation{
				key: points.Key{Experiment: basic + overTime, Sharder: u.sharder, Round: key.Round}, every: tick,
				long: run.Pick(u.bench, tick, basicLong), strikes: never,
			})

			return err
		}, capacity.Changes{Rate: capacity.Rate{Base: created}, Make: u.create},
			capacity.Changes{Rate: capacity.Rate{Base: deleted}, Make: u.remove},
			u.Edits(capacity.Rate{Slope: (created - deleted) / perMinute}, u.present))
	})

	whole.took = append(whole.took, u.Tracker.Took()...) // what was not done at the end
	services := 0.0

	for _, service := range target.Services {
		services += whole.spent[coresOf+service]
	}

	p.Values = map[string]float64{
		servicesCores: services, allCores: services + whole.spent[coresOf+shardsKind],
		doneP99: continuity.Quantile(whole.took, late).Seconds(), inTime: percent(whole.seen.AllBegun()),
	}

	return p, err
}

// present returns one of the Websites that stay for a while; -1 if there is none.
func (u *users) present() int {
	first, last := int(u.gone.Load())+untouched, int(u.made.Load())-untouched
	if last <= first {
		return -1
	}

	return first + rand.IntN(last-first) //nolint:gosec // no secret
}

func (u *users) create(ctx context.Context) error {
	i := int(u.made.Add(1) - 1)

	made, err := u.bench.Objects.Post(context.WithoutCancel(ctx), u.Crew.Sites.Ref(i), u.Crew.Sites.Object(i))
	if err == nil {
		u.Tracker.Changed(made.UID, made.Generation, record.Now())
	}

	return err
}

// remove deletes the oldest Website, and its ConfigMap: nothing collects garbage here.
func (u *users) remove(ctx context.Context) error {
	if u.gone.Load()+untouched >= u.made.Load() {
		return nil // too soon
	}

	i := int(u.gone.Add(1) - 1)

	var errs []error

	for _, kind := range []objects.Kind{objects.Websites, objects.ConfigMaps} {
		ref := u.Crew.Sites.Ref(i)
		ref.Kind = kind
		errs = append(errs, u.bench.Objects.Remove(context.WithoutCancel(ctx), ref))
	}

	return errors.Join(errs...)
}
