// Package moves measures what it takes to move objects away from a dead shard and to a new one, and how soon it begins.
// The floor is the same number of raw patches of metadata, as the rebalancer sends them.
package moves

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/clusterring/clusterring/tools/load/internal/measure/filled"
	"github.com/clusterring/clusterring/tools/load/internal/objects"
	"github.com/clusterring/clusterring/tools/load/internal/result"
	"github.com/clusterring/clusterring/tools/load/internal/run"
	"github.com/clusterring/clusterring/tools/load/internal/shards"
	"github.com/clusterring/clusterring/tools/load/internal/target"
)

const (
	manyRow         = "moves-many-shards"
	rateSeries      = "moves-by-shards"
	apiServerSeries = "moves-apiserver-by-shards"
	cpuSeries       = "moves-rebalancer-by-shards"

	// threeShards is the number of shards in the rows. With few objects, one of the shards has a thousand or more.
	threeShards, thousand, few = 3, 1000, 3300
	// threeHundred is the largest number of shards that die.
	threeHundred = 300

	patch     = "raw metadata PATCH, same concurrency"
	countedTo = "CPU counts until the last object has moved."
)

// Measurements returns what this package measures.
func Measurements() []run.Measurement {
	return []run.Measurement{
		{
			Name: "moves", Small: 40 * time.Second, Full: 250 * time.Second,
			Parts: []run.Part{release(), {Rows: run.IDs(rows(0)), Run: three}},
		},
		{
			Name: "moves-by-shards", Small: 40 * time.Second, Full: 420 * time.Second,
			Parts: []run.Part{{Rows: []string{manyRow}, Series: []result.Series{
				{
					ID: rateSeries, Title: "Objects moved per second after the death of a third of the shards",
					Over: result.OverShards, Unit: "objects/s",
				},
				{ID: apiServerSeries, Title: "API server CPU per moved object", Over: result.OverShards, Unit: "ms"},
				{ID: cpuSeries, Title: "Rebalancer CPU per moved object", Over: result.OverShards, Unit: "ms"},
			}, Run: byShards}},
		},
		{
			Name: "renewals", Small: 20 * time.Second, Full: 60 * time.Second,
			Parts: []run.Part{{Rows: []string{renewalRow}, Run: renewals}},
		},
	}
}

// turnaround is a death and a join.
type turnaround struct{ death, join filled.Cost }

func (t turnaround) String() string { return fmt.Sprintf("death: %v; join: %v", t.death, t.join) }

// three measures with three shards.
func three(ctx context.Context, b *run.Bench) error {
	w, err := filled.Open(ctx, b, "load-moves", threeShards)
	if err != nil {
		return err
	}

	if err := w.Grow(ctx, run.Pick(b, few, 10_000)); err != nil {
		return err
	}

	values, floors, err := run.Rounds(ctx, b, func(ctx context.Context) (t turnaround, err error) {
		if t.death, err = w.Die(ctx, 1); err != nil {
			return t, fmt.Errorf("death: %w", err)
		}

		if t.join, err = w.Join(ctx, 1); err != nil {
			return t, fmt.Errorf("join: %w", err)
		}

		return t, nil
	}, func(ctx context.Context) (t turnaround, err error) {
		// Once, as in a death, and twice, as in a join.
		if t.death, err = w.Raw(ctx, 1, 0); err != nil {
			return t, err
		}

		second, err := w.Raw(ctx, 1, 0)
		t.join = t.death.Plus(second)

		return t, err
	})
	if err != nil {
		return err
	}

	run.Report(b, values, floors, rows(w.Objects())...)

	return nil
}

func rows(objects int) []run.Figure[turnaround] {
	with := fmt.Sprintf("%d objects, %d shards", objects, threeShards)

	return []run.Figure[turnaround]{
		{Row: result.Row{
			ID: "moves-death", Title: "objects moved per second after a shard's death, " + with, Unit: "objects/s",
			FloorTitle: patch, Target: result.Min(0.85), PriorArt: "0.21 / 0.51",
			Notes: []string{"The time counts from the loss of the Lease to the last object."},
		}, Of: func(t turnaround) float64 { return t.death.Rate }},
		{Row: result.Row{
			ID: "moves-death-apiserver", Title: "API server CPU per moved object", Unit: "ms",
			FloorTitle: "same raw PATCH", Target: result.Max(1.2), PriorArt: "3.0 / 1.7", Notes: []string{countedTo},
		}, Of: func(t turnaround) float64 { return t.death.APIServer }},
		{Row: result.Row{
			ID: "moves-death-rebalancer", Title: "rebalancer CPU per moved object", Unit: "ms",
			Target: result.Max(0.2), PriorArt: "0.68 / 0.48 ms", Notes: []string{countedTo},
		}, Of: func(t turnaround) float64 { return t.death.Rebalancer }},
		{Row: result.Row{
			ID: "moves-join", Title: "join: objects drained and released to the new shard per second, " + with,
			Unit:       "objects/s",
			FloorTitle: "two raw PATCHes per object", Target: result.Min(0.9), PriorArt: "0.36 / 0.64",
			Notes: []string{"The drain label names the next shard, and the shard that releases the object writes this name " +
				"into its shard label. No other write is necessary."},
		}, Of: func(t turnaround) float64 { return t.join.Rate }},
	}
}

// release measures how soon objects move after their shard has released its Lease.
func release() run.Part {
	part := run.Compare([]run.Figure[filled.Cost]{
		{Row: result.Row{
			ID: "moves-release-thousand", Title: "time from a Lease's release to the last of 1,000 moved objects", Unit: "s",
			FloorTitle: "1,000 raw PATCHes", Judge: result.JudgeValue, Target: result.Max(1),
		}, Of: func(c filled.Cost) float64 { return c.Mark }},
	}, func(ctx context.Context, b *run.Bench) (moved, raw run.Trial[filled.Cost], err error) {
		w, err := filled.Open(ctx, b, "load-release", threeShards)
		if err != nil {
			return nil, nil, err
		}

		raw = func(ctx context.Context) (filled.Cost, error) { return w.Raw(ctx, 1, thousand) }
		moved = func(ctx context.Context) (filled.Cost, error) {
			c, err := w.Leave(ctx, w.Release, thousand)
			if err == nil && c.Mark == 0 {
				err = fmt.Errorf("only %d objects had to move", c.Moved)
			}

			if err != nil {
				return c, err
			}

			_, err = w.Join(ctx, 1)

			return c, err
		}

		return moved, raw, w.Grow(ctx, few)
	})
	part.Name = "release"

	return part
}

func rate(c filled.Cost) float64       { return c.Rate }
func apiServer(c filled.Cost) float64  { return c.APIServer }
func rebalancer(c filled.Cost) float64 { return c.Rebalancer }

// byShards measures deaths with more and more shards.
func byShards(ctx context.Context, b *run.Bench) error {
	var parts []run.Part

	sizes := run.Pick(b, []int{3, 30}, []int{3, 10, 30, 100, 300, 1000})
	for i, size := range sizes {
		parts = append(parts, run.Part{Name: fmt.Sprintf("%d shards", size),
			Run: func(ctx context.Context, b *run.Bench) error {
				return deaths(ctx, b, size, i == len(sizes)-1)
			}})
	}

	return b.Parts(ctx, parts...)
}

// compared is a death and its floor.
type compared struct{ died, least filled.Cost }

func (c compared) String() string { return fmt.Sprintf("a death: %v; floor: %v", c.died, c.least) }

// deaths makes a ring of so many shards, and measures deaths of a third of them, but not more than 300. After each, as
// many join.
func deaths(ctx context.Context, b *run.Bench, size int, most bool) error {
	w, err := filled.Open(ctx, b, "load-shards", size)
	if err != nil {
		return err
	}

	if err := w.Grow(ctx, run.Pick(b, 1000, 6000)); err != nil {
		return err
	}

	dying := min(size/threeShards, threeHundred)

	// The floor comes right before each death, because they share the speed of the machine at that moment. A join takes
	// longer than both.
	rounds, _, err := run.Rounds(ctx, b, func(ctx context.Context) (d compared, err error) {
		if d.least, err = w.Least(ctx, dying); err != nil {
			return d, fmt.Errorf("floor: %w", err)
		}

		dead := w.Held()[:dying]

		if d.died, err = w.Die(ctx, dying); err != nil {
			return d, fmt.Errorf("death: %w", err)
		}

		if err := w.Bury(ctx, dead); err != nil { // a ring of a thousand shards keeps a thousand Leases
			return d, err
		}

		if _, err := w.Join(ctx, dying); err != nil {
			return d, fmt.Errorf("join: %w", err)
		}

		return d, nil
	}, nil)
	if err != nil {
		return err
	}

	var values, floors []filled.Cost

	for _, r := range rounds {
		values, floors = append(values, r.died), append(floors, r.least)
	}

	b.Point(rateSeries, size, result.Column(values, rate), result.Column(floors, rate))
	b.Point(apiServerSeries, size, result.Column(values, apiServer), result.Column(floors, apiServer))
	b.Point(cpuSeries, size, result.Column(values, rebalancer), nil)

	if most {
		run.Report(b, values, floors, run.Figure[filled.Cost]{Row: result.Row{
			ID: manyRow, Title: fmt.Sprintf("objects moved per second after the death of %d of %s shards", dying,
				result.Number(float64(size))), Unit: "objects/s",
			FloorTitle: patch + ", after two PATCHes of each Lease that is lost", Target: result.Min(0.8),
		}, Of: rate})
	}

	return nil
}

const (
	renewalRow = "moves-renewal-rings"

	// renewing is the number of shards that renew their Leases, each once in a renewal, for renewedFor.
	renewing            = 50
	renewal, renewedFor = time.Second, 5 * time.Second
)

// renewals measures what a renewal costs the API server and all services, which watch Leases: with one ring, and with
// many more.
func renewals(ctx context.Context, b *run.Bench) error {
	fleet, err := b.Fleet(ctx, shards.Ring{Name: "load-renewals", Main: objects.ConfigMaps.GroupResource()}, renewing)
	if err != nil {
		return err
	}

	if err := fleet.AwaitShards(ctx); err != nil {
		return err
	}

	const parts = 2

	alone, err := renewalCosts(ctx, b.Share(parts), fleet)
	if err != nil {
		return err
	}

	others := run.Pick(b, 10, 100)

	err = b.Each(ctx, others, func(b *run.Bench, i int) error {
		_, err := b.Fleet(ctx, shards.Ring{
			Name: "load-renewals-" + strconv.Itoa(i), Main: objects.ConfigMaps.GroupResource(),
		}, 0)

		return err
	})
	if err != nil {
		return fmt.Errorf("more rings: %w", err)
	}

	among, err := renewalCosts(ctx, b, fleet)
	if err != nil {
		return err
	}

	// The time budget may allow one of them more rounds.
	rounds := min(len(alone), len(among))
	alone, among = alone[:rounds], among[:rounds]

	note := fmt.Sprintf("%d shards renew their Leases once per second. What API server and services take without "+
		"renewals is subtracted. The renewals are sent with the rights of an administrator.", renewing)
	b.Report(result.Row{
		ID: renewalRow, Title: fmt.Sprintf("CPU of API server and services per renewal of a Lease, with %d other rings",
			others), Unit: "ms", Values: among,
		FloorTitle: "without other rings", Floor: alone, Target: result.Max(1.2), Notes: []string{note},
	})

	return nil
}

// usedFor is the CPU time of API server and services, in milliseconds, and the renewals in that time.
type usedFor struct {
	ms       float64
	renewals int
	// of is the part of each process.
	of map[string]float64
}

func (u usedFor) String() string {
	parts := make([]string, 0, len(u.of))
	for _, name := range slices.Sorted(maps.Keys(u.of)) {
		parts = append(parts, fmt.Sprintf("%s %.0f", name, u.of[name]))
	}

	return fmt.Sprintf("%.0f ms (%s), %d renewals", u.ms, strings.Join(parts, ", "), u.renewals)
}

// renewalCosts returns the CPU time of API server and services per renewal, in milliseconds.
func renewalCosts(ctx context.Context, b *run.Bench, fleet *shards.Fleet) ([]float64, error) {
	values, floors, err := run.Rounds(ctx, b, func(ctx context.Context) (usedFor, error) {
		renewals := 0
		u, err := during(b, func() error {
			stop := fleet.Renew(ctx, renewal)
			paused := b.Pause(ctx, renewedFor)
			n, failed := stop()
			renewals = n

			return errors.Join(paused, failed)
		})
		u.renewals = renewals

		return u, err
	}, func(ctx context.Context) (usedFor, error) {
		return during(b, func() error { return b.Pause(ctx, renewedFor) })
	})

	costs := make([]float64, len(values))
	for i, v := range values {
		costs[i] = (v.ms - floors[i].ms) / float64(max(1, v.renewals))
	}

	return costs, err
}

// during measures the CPU time that API server and services take meanwhile.
func during(b *run.Bench, do func() error) (usedFor, error) {
	all, err := b.Local.Usage().During(do)

	u := usedFor{of: map[string]float64{}}
	for _, name := range append([]string{target.APIServer}, target.Services...) {
		u.of[name] = all[name].Milliseconds()
		u.ms += u.of[name]
	}

	return u, err
}
