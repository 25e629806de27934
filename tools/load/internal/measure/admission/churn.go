package admission

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/clusterring/clusterring/tools/lab/continuity"
	"github.com/clusterring/clusterring/tools/load/internal/capacity"
	"github.com/clusterring/clusterring/tools/load/internal/objects"
	"github.com/clusterring/clusterring/tools/load/internal/points"
	"github.com/clusterring/clusterring/tools/load/internal/result"
	"github.com/clusterring/clusterring/tools/load/internal/run"
	"github.com/clusterring/clusterring/tools/load/internal/shards"
	"github.com/clusterring/clusterring/tools/load/internal/target"
)

// What happens in a turn: creates without a webhook, with the no-op one, and with that of the assigner; edits of
// objects that have a shard; or nothing.
const (
	without = "create without a webhook"
	least   = "create with the no-op webhook"
	ours    = "create"
	edits   = "edit"
	idle    = "idle"
)

var turns = []string{without, least, ours, edits, idle}

// The figures of a turn: how long a change took, and the CPU time of a webhook or of all services per second.
const (
	median, late, latest = " p50 ms", " p99 ms", " p99.9 ms"
	cpu                  = " CPU ms/s"
)

// edited is the number of objects that edits change.
const edited = 500

// Churn returns measurements of what a ring costs while its objects change at a rate that does not depend on how long
// each change takes.
func Churn() []run.Measurement {
	return []run.Measurement{{Name: "churn", Parts: []run.Part{{
		Rows: []string{"create-p50", "create-p99", "create-cpu", "edit-cpu"}, Run: churns,
	}}}}
}

// churn is a ring of ConfigMaps, and two namespaces outside of it.
type churn struct {
	*experiment

	rng   *rand.Rand
	batch map[string]objects.Batch // that a turn changes
}

// churns measures at some rates.
func churns(ctx context.Context, b *run.Bench) error {
	var c *churn

	rates := run.Pick(b, []int{60}, []int{10, 100}) //nolint:mnd // the thesis had 10
	for _, rate := range rates {
		for round := range b.Repeat() {
			key := points.Key{Experiment: "churn", Sharder: "services", X: rate, Round: round}

			err := b.Once(key, func() (p points.Point, err error) {
				if c == nil {
					if c, err = prepare(ctx, b); err != nil {
						return p, err
					}
				}

				return c.measure(ctx, rate)
			})
			if err != nil {
				return err
			}
		}
	}

	most := rates[len(rates)-1]
	// more returns by how much a figure of a turn is higher than that of another, per unit.
	more := func(turn, than, figure string, unit int) []float64 {
		values, _ := b.Points.Of("churn", "services", most, turn+figure)
		base, _ := b.Points.Of("churn", "services", most, than+figure)
		middle, _, _ := result.Spread(append(base, 0)[:max(1, len(base))])

		return result.Column(values, func(v float64) float64 { return (v - middle) / float64(unit) })
	}

	for _, row := range []result.Row{{
		ID: "create-p50", Title: "time that the webhook adds to a create, median", Target: result.Max(1),
		Values: more(ours, without, median, 1), Floor: more(least, without, median, 1),
	}, {
		ID: "create-p99", Title: "time that the webhook adds to a create, 99th percentile", PriorArt: "62",
		Values: more(ours, without, late, 1), Floor: more(least, without, late, 1), Target: result.Max(5), //nolint:mnd // ms
	}, {
		ID: "create-cpu", Title: "CPU of the services per create", Target: result.Max(0.1), //nolint:mnd // ms
		Values: more(ours, idle, cpu, most), Floor: more(least, "", cpu, most),
	}, {
		ID: "edit-cpu", Title: "CPU of the services per edit", Target: result.Max(0.01), //nolint:mnd // ms
		Values: more(edits, idle, cpu, most),
	}} {
		row.Title, row.Unit, row.Judge = fmt.Sprintf("%s, at %d per second", row.Title, most), "ms", result.JudgeValue
		if len(row.Floor) > 0 {
			row.FloorTitle = "the no-op webhook"
		}

		b.Report(row)
	}

	return nil
}

func prepare(ctx context.Context, b *run.Bench) (*churn, error) {
	fleet, err := b.Fleet(ctx, shards.Ring{Name: "load-churn", Main: objects.ConfigMaps.GroupResource()}, 3) //nolint:mnd // few
	if err != nil {
		return nil, err
	}

	b.RemoveAll(fleet.Ring.Namespace, objects.ConfigMaps) // nobody would acknowledge drains

	e := &experiment{bench: b, fleet: fleet}

	webhook, err := registered(ctx, b.Local.Client, fleet.Ring.Name)
	if err == nil {
		err = errors.Join(e.launchNoop(ctx, webhook), called(ctx, b.Objects, fleet.Ring.Namespace, e.label()))
	}

	if err != nil {
		return nil, err
	}

	free, err := b.Local.Namespace(ctx, "load-free")
	in := func(namespace, prefix string, count int) objects.Batch {
		return objects.Batch{Kind: objects.ConfigMaps, Namespace: namespace, Prefix: prefix, Count: count}
	}
	c := &churn{experiment: e, rng: rand.New(rand.NewPCG(1, 1)), batch: map[string]objects.Batch{ //nolint:gosec // no secret
		without: in(free, "created", 0), least: in(e.namespace, "created", 0),
		ours: in(fleet.Ring.Namespace, "created", 0), edits: in(fleet.Ring.Namespace, "edited", edited),
	}}

	return c, errors.Join(err, b.Objects.Create(ctx, c.batch[edits]))
}

// measure lets short turns follow each other, so that other load on the machine affects all of them equally.
func (c *churn) measure(ctx context.Context, rate int) (p points.Point, err error) {
	b := c.bench
	n, d := run.Pick(b, 2, 10), run.Pick(b, 3*time.Second, 20*time.Second)
	took := map[string][]time.Duration{}
	p.Values = map[string]float64{}

	for round := range n + 1 {
		for i := range turns {
			turn := turns[(round+i)%len(turns)]

			if err := b.Local.Calm(ctx); err != nil {
				return p, err
			}

			var offered capacity.Offered

			used, err := b.Local.Usage().During(func() (err error) {
				offered, err = c.turn(ctx, turn, rate, d)
				return err
			})
			if err := errors.Join(err, c.clear(ctx, turn, offered.Asked)); err != nil {
				return p, fmt.Errorf("%s: %w", turn, err)
			}

			if round == 0 {
				continue // connections and caches are not warm
			}

			if err := offered.Check(); err != nil && turn != idle {
				p.Invalid = append(p.Invalid, turn+": "+err.Error())
			}

			busy := target.Services
			if turn == least {
				busy = []string{noop}
			}

			for _, name := range busy {
				p.Values[turn+cpu] += used[name].Milliseconds() / (float64(n) * d.Seconds())
			}

			took[turn] = append(took[turn], offered.Took...)
		}
	}

	for turn, took := range took {
		for name, part := range map[string]float64{median: 0.5, late: 0.99, latest: 0.999} {
			p.Values[turn+name] = continuity.Quantile(took, part).Seconds() * 1000 //nolint:mnd // milliseconds
		}
	}

	return p, nil
}

// turn makes changes at a rate for a time.
func (c *churn) turn(ctx context.Context, turn string, rate int, d time.Duration) (capacity.Offered, error) {
	if turn == idle {
		return capacity.Offered{}, c.bench.Pause(ctx, d)
	}

	next := atomic.Int64{}
	batch := c.batch[turn]
	g := capacity.Generator{Clock: c.bench.Clock, Change: func(ctx context.Context) (err error) {
		i := int(next.Add(1) - 1)
		if turn == edits {
			return c.bench.Objects.MergePatch(ctx, batch.Ref(i%edited),
				map[string]any{"data": map[string]string{"changed": strconv.Itoa(i)}})
		}

		_, err = c.bench.Objects.Post(ctx, batch.Ref(i), batch.Object(i))

		return err
	}}

	return g.Run(ctx, capacity.Rate{Base: float64(rate)}.Arrivals(c.rng, d)), ctx.Err()
}

// clear checks that what a turn has created has the label, and deletes it.
func (c *churn) clear(ctx context.Context, turn string, n int) error {
	if turn == edits || turn == idle {
		return nil
	}

	batch := c.batch[turn]
	batch.Count = n

	if turn != without {
		if err := labelled(ctx, c.bench, batch, c.label()); err != nil {
			return err
		}
	}

	return c.bench.Objects.Delete(ctx, batch)
}
