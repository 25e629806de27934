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
	"github.com/clusterring/clusterring/tools/load/internal/target"
)

// What happens in a turn: creates without a webhook, with the no-op one, and with that of the assigner; edits of
// objects that have a shard; or nothing. They begin the names of the objects.
const (
	without = "create-without-webhook"
	least   = "create-with-noop-webhook"
	ours    = "create"
	edits   = "edit"
	idle    = "idle"
)

var turns = []string{without, least, ours, edits, idle}

// parts are the parts of the changes, in percent, for which it is known how long they took at most.
var parts = []float64{1, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 97, 98, 99, 99.5, 99.9}

// quantile names the figure of a turn that tells how long a part of the changes took at most.
func quantile(part float64) string { return fmt.Sprintf(" p%g ms", part) }

// The figures of a turn: how long a change took, and the CPU time of the no-op webhook or of all services per change.
const (
	median, late = " p50 ms", " p99 ms"
	cpu          = " CPU ms"
)

// floorOf ends the name of a figure of the no-op webhook.
const floorOf = "-floor"

// added are the figures of the rows: by how much a figure of a turn is higher than that of another.
var added = []struct{ id, turn, than, figure string }{
	{"create-p50", ours, without, median}, {"create-p50" + floorOf, least, without, median},
	{"create-p99", ours, without, late}, {"create-p99" + floorOf, least, without, late},
	{"create-cpu", ours, idle, cpu}, {"create-cpu" + floorOf, least, "", cpu},
	{"edit-cpu", edits, idle, cpu},
}

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

	rng        *rand.Rand
	namespaces map[string]string // by turn
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
	for _, row := range []result.Row{
		{ID: "create-p50", Title: "time that the webhook adds to a create, median", Target: result.Max(1)},
		{
			ID: "create-p99", Title: "time that the webhook adds to a create, 99th percentile", PriorArt: "62",
			Target: result.Max(5), //nolint:mnd // ms
		},
		{ID: "create-cpu", Title: "CPU of the services per create", Target: result.Max(0.1)}, //nolint:mnd // ms
		{ID: "edit-cpu", Title: "CPU of the services per edit", Target: result.Max(0.01)},    //nolint:mnd // ms
	} {
		row.Title, row.Unit, row.Judge = fmt.Sprintf("%s, at %d per second", row.Title, most), "ms", result.JudgeValue
		row.Values, _ = b.Points.Of("churn", "services", most, row.ID)

		if row.Floor, _ = b.Points.Of("churn", "services", most, row.ID+floorOf); len(row.Floor) > 0 {
			row.FloorTitle = "the no-op webhook"
		}

		b.Report(row)
	}

	for _, rate := range rates {
		draw(b, rate)
	}

	return nil
}

// draw draws how long creates took, with each of the webhooks.
func draw(b *run.Bench, rate int) {
	chart := result.Chart{
		ID: fmt.Sprintf("create-%d", rate), Title: fmt.Sprintf("Creates that took at most so long, at %d per second", rate),
		X: "ms", Y: "%",
	}

	for _, turn := range []string{without, least, ours} {
		line := result.Line{Name: turn}

		for _, part := range parts {
			took, _ := b.Points.Of("churn", "services", rate, turn+quantile(part))
			if middle, _, _ := result.Spread(took); len(took) > 0 {
				line.Points = append(line.Points, result.XY{X: middle, Y: part})
			}
		}

		chart.Lines = append(chart.Lines, line)
	}

	b.Draw(chart)
}

func prepare(ctx context.Context, b *run.Bench) (*churn, error) {
	e, err := open(ctx, b, "load-churn", 3) //nolint:mnd // few
	if err != nil {
		return nil, err
	}

	ring := e.fleet.Ring.Namespace
	b.RemoveAll(ring, objects.ConfigMaps) // nobody would acknowledge drains

	free, err := b.Local.Namespace(ctx, "load-free")
	c := &churn{
		experiment: e, rng: rand.New(rand.NewPCG(1, 1)), //nolint:gosec // no secret
		namespaces: map[string]string{without: free, least: e.namespace, ours: ring, edits: ring},
	}

	return c, errors.Join(err, b.Objects.Create(ctx, c.batch(edits, edited)))
}

// batch returns the objects of a turn.
func (c *churn) batch(turn string, n int) objects.Batch {
	return objects.Batch{Kind: objects.ConfigMaps, Namespace: c.namespaces[turn], Prefix: turn, Count: n}
}

// measure lets short turns follow each other, so that other load on the machine affects all of them equally.
func (c *churn) measure(ctx context.Context, rate int) (p points.Point, err error) {
	b := c.bench
	n, d := run.Pick(b, 1, 10), run.Pick(b, 3*time.Second, 20*time.Second)
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
				p.Values[turn+cpu] += used[name].Milliseconds() / (float64(n*rate) * d.Seconds())
			}

			took[turn] = append(took[turn], offered.Took...)
		}
	}

	for turn, took := range took {
		for _, part := range parts {
			p.Values[turn+quantile(part)] = continuity.Quantile(took, part/100).Seconds() * 1000 //nolint:mnd // milliseconds
		}
	}

	for _, a := range added {
		p.Values[a.id] = p.Values[a.turn+a.figure] - p.Values[a.than+a.figure]
	}

	return p, nil
}

// turn makes changes at a rate for a time.
func (c *churn) turn(ctx context.Context, turn string, rate int, d time.Duration) (capacity.Offered, error) {
	if turn == idle {
		return capacity.Offered{}, c.bench.Pause(ctx, d)
	}

	next, batch := atomic.Int64{}, c.batch(turn, 0)
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

	batch := c.batch(turn, n)
	if turn != without {
		if err := labelled(ctx, c.bench, batch, c.label()); err != nil {
			return err
		}
	}

	return c.bench.Objects.Delete(ctx, batch)
}
