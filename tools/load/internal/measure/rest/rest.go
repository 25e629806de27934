// Package rest measures what sharding costs when nothing happens, and how much memory it takes when much does: the services at rest
// with more and more objects, the rebalancer in a join, the assigner with many rings and shards.
package rest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/clusterring/clusterring/tools/load/internal/figure"
	"github.com/clusterring/clusterring/tools/load/internal/measure/world"
	"github.com/clusterring/clusterring/tools/load/internal/result"
	"github.com/clusterring/clusterring/tools/load/internal/run"
	"github.com/clusterring/clusterring/tools/load/internal/target"
	"github.com/clusterring/clusterring/tools/load/internal/usage"
)

const (
	cpuRow      = "rest-cpu"
	networkRow  = "rest-network"
	memoryRow   = "rest-memory"
	requestsRow = "rest-requests"
	peakRow     = "rebalancer-peak-memory"

	restSeries      = "rest-cpu-by-objects"
	memorySeries    = "rest-memory-by-objects"
	rateSeries      = "moves-by-objects"
	apiServerSeries = "moves-apiserver-by-objects"
	cpuSeries       = "moves-rebalancer-by-objects"
	peakSeries      = "rebalancer-peak-memory-by-objects"
	passSeries      = "pass-by-objects"

	// shardCount is how many shards there are before one more joins.
	shardCount = 20

	mebibyte = 1 << 20
	// grace is what may grow: 10 %.
	grace = 1.1
)

// Measurements returns what this package measures.
func Measurements() []run.Measurement {
	return []run.Measurement{
		assignerMemory(),
		{
			Name: "objects", IDs: []string{
				cpuRow, networkRow, memoryRow, requestsRow, peakRow, restSeries, memorySeries, rateSeries, apiServerSeries, cpuSeries, peakSeries, passSeries,
			},
			Budget: map[run.Scale]time.Duration{run.Small: 40 * time.Second, run.Full: 400 * time.Second}, Run: byObjects,
		},

		foreignWrites(),
		manyRings(),
		manyObjects(), // The last one, for its objects need not be removed then.
	}
}

// sample is what a service, or all of them, uses at rest.
type sample struct {
	// cpu is in milliseconds per second, network in KiB/s, memory in MiB, requests per second.
	cpu, network, memory, requests float64
}

// growth is a ring that gets more and more objects.
type growth struct {
	bench *run.Bench
	world *world.World
	// sizes are the numbers of objects, rest what all services used at rest with so many, one sample per window. Those of each
	// service are in apart.
	sizes []int
	rest  map[int][]sample
	apart map[int]map[string]sample

	series map[string]*result.Series
	peak   float64
}

func newGrowth(b *run.Bench, w *world.World, sizes []int) *growth {
	return &growth{
		bench: b, world: w, sizes: sizes,
		rest: map[int][]sample{}, apart: map[int]map[string]sample{}, series: map[string]*result.Series{},
	}
}

func byObjects(ctx context.Context, b *run.Bench) (rows []result.Row, series []result.Series, err error) {
	w, err := world.Open(ctx, b, "load-objects", shardCount)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, w.Close(context.WithoutCancel(ctx))) }()

	g := newGrowth(b, w, run.Pick(b, []int{0, 500, 2500}, []int{0, 1000, 10_000, 200_000}))
	for _, size := range g.sizes {
		if err := g.at(ctx, size); err != nil {
			return nil, nil, fmt.Errorf("%d objects: %w", size, err)
		}
	}

	for _, id := range []string{restSeries, memorySeries, rateSeries, apiServerSeries, cpuSeries, passSeries, peakSeries} {
		if s := g.series[id]; s != nil {
			series = append(series, *s)
		}
	}

	return g.rows(), series, nil
}

// at measures with so many objects.
func (g *growth) at(ctx context.Context, size int) error {
	if err := g.world.Grow(ctx, size); err != nil {
		return err
	}
	// A service knows nothing of the objects that were made behind its back. One that begins anew has gone over all of them.
	if err := g.world.Restart(ctx); err != nil {
		return err
	}

	if g.bench.Wants(cpuRow, networkRow, memoryRow, requestsRow, restSeries, memorySeries) {
		if err := g.atRest(ctx, size); err != nil {
			return err
		}
	}

	if size > 0 && g.bench.Wants(peakRow, rateSeries, apiServerSeries, cpuSeries, peakSeries, passSeries) {
		return g.moving(ctx, size)
	}

	return nil
}

// atRest measures while nothing happens.
func (g *growth) atRest(ctx context.Context, size int) error {
	windows, window := run.Pick(g.bench, 2, 3), run.Pick(g.bench, 2*time.Second, 10*time.Second)
	for range windows {
		all, apart, err := g.look(ctx, window)
		if err != nil {
			return err
		}

		g.rest[size] = append(g.rest[size], all)
		g.apart[size] = apart
		g.point(restSeries, size, all.cpu, 0)
		g.point(memorySeries, size, all.memory, 0)
	}
	g.bench.Progress("%d objects, at rest: %s", size, describe(g.apart[size]))

	return nil
}

// look returns what the services use in one window, all together and each by itself.
func (g *growth) look(ctx context.Context, window time.Duration) (all sample, apart map[string]sample, err error) {
	s, clock := g.bench.System, g.bench.Clock

	requests := map[string]int{}
	for _, name := range target.Services {
		if requests[name], err = s.Requests(ctx, name); err != nil {
			return all, nil, err
		}
	}

	began := clock.Now()

	used, err := g.bench.Local.Usage().During(func() error { return g.bench.Pause(ctx, window) })
	if err != nil {
		return all, nil, err
	}

	seconds := clock.Since(began).Seconds()
	apart = map[string]sample{target.APIServer: sampleOf(used[target.APIServer], seconds)}

	for _, name := range target.Services {
		now, err := s.Requests(ctx, name)
		if err != nil {
			return all, nil, err
		}

		one := sampleOf(used[name], seconds)
		one.requests = float64(now-requests[name]) / seconds
		apart[name] = one
		all.cpu, all.network = all.cpu+one.cpu, all.network+one.network
		all.memory, all.requests = all.memory+one.memory, all.requests+one.requests
	}

	return all, apart, nil
}

func sampleOf(u usage.Usage, seconds float64) sample {
	return sample{
		cpu: float64(u.CPU) / float64(time.Millisecond) / seconds, network: float64(u.Received+u.Sent) / 1024 / seconds,
		memory: float64(u.Memory) / mebibyte,
	}
}

// moving measures a death and a join.
func (g *growth) moving(ctx context.Context, size int) error {
	least, err := g.world.Raw(ctx, 1, 0)
	if err != nil {
		return err
	}

	died, err := g.world.Die(ctx, 1)
	if err != nil {
		return err
	}
	g.bench.Progress("%d objects, a death: %v; floor: %v", size, died, least)
	g.point(rateSeries, size, died.Rate, least.Rate)
	g.point(apiServerSeries, size, died.APIServer, least.APIServer)
	g.point(cpuSeries, size, died.Rebalancer, 0)
	g.point(passSeries, size, died.Pass, 0)

	reader := g.bench.Local.Usage()
	if err := reader.ResetPeaks(); err != nil {
		return err
	}

	joined, err := g.world.Join(ctx, 1)
	if err != nil {
		return err
	}

	used, err := reader.Read()
	if err != nil {
		return err
	}

	g.peak = float64(used[target.Rebalancer].PeakMemory) / mebibyte
	g.bench.Progress("%d objects, a join: %v; peak of the rebalancer's memory: %.1f MiB", size, joined, g.peak)
	g.point(peakSeries, size, g.peak, 0)

	return nil
}

// titles and units are those of the series.
var titles = map[string][2]string{
	restSeries:      {"CPU of all services at rest", "ms/s"},
	memorySeries:    {"Memory of all services at rest", "MiB"},
	rateSeries:      {"Objects moved per second after the death of one of 20 shards", "objects/s"},
	apiServerSeries: {"API server CPU per moved object, after the death of one of 20 shards", "ms"},
	cpuSeries:       {"Rebalancer CPU per moved object, after the death of one of 20 shards", "ms"},
	passSeries:      {"API server and rebalancer CPU of the pass over all objects that follows a change, per object", "µs"},
	peakSeries:      {"Peak of the rebalancer's memory when a shard joins 19", "MiB"},
}

// point adds a value, and its floor unless that is 0, to the point of a series.
func (g *growth) point(id string, size int, value, floor float64) {
	s := g.series[id]
	if s == nil {
		s = &result.Series{ID: id, Title: titles[id][0], Over: result.OverObjects, Unit: titles[id][1]}
		g.series[id] = s
	}

	if n := len(s.Points); n == 0 || s.Points[n-1].X != float64(size) {
		s.Points = append(s.Points, result.Point{X: float64(size)})
	}

	last := &s.Points[len(s.Points)-1]

	last.Values = append(last.Values, value)
	if floor != 0 {
		last.Floor = append(last.Floor, floor)
	}
}

// restRows are the rows about the services at rest, with ids that begin with the prefix.
func (g *growth) restRows(prefix, with string) (rows []result.Row) {
	most := g.sizes[len(g.sizes)-1]
	title := "the services at rest with " + with + ": "

	notes := []string{fmt.Sprintf("Of all four services together, each newly started. With %d: %s. With 0: %s.", most, describe(g.apart[most]), describe(g.apart[0]))}
	for _, kind := range []struct {
		id, what, unit, prior string
		of                    func(sample) float64
	}{
		{cpuRow, "CPU", "ms/s", "grows with objects", func(s sample) float64 { return s.cpu }},
		{networkRow, "network", "KiB/s", "grows with objects", func(s sample) float64 { return s.network }},
		{memoryRow, "memory", "MiB", "+50 MB at 8,000", func(s sample) float64 { return s.memory }},
		{requestsRow, "requests to the API server", "requests/s", "", func(s sample) float64 { return s.requests }},
	} {
		row := result.Row{
			ID: prefix + kind.id, Title: title + kind.what, Unit: kind.unit, FloorTitle: "the figure with 0", Judge: result.JudgeRatio,
			Target: result.Target{Bound: result.AtMost, Value: grace, Unit: "×"}, PriorArt: kind.prior, Notes: notes,
		}
		for i, s := range g.rest[most] {
			row.Values, row.Floor = append(row.Values, kind.of(s)), append(row.Floor, kind.of(g.rest[0][i]))
		}

		if len(row.Values) > 0 {
			rows = append(rows, row)
		}
	}

	return rows
}

func (g *growth) rows() []result.Row {
	most := figure.Number(float64(g.sizes[len(g.sizes)-1]))

	rows := g.restRows("", most+" objects")
	if g.peak > 0 {
		rows = append(rows, result.Row{
			ID: peakRow, Title: fmt.Sprintf("rebalancer memory at its peak in a join with %s objects", most), Unit: "MiB",
			Values: []float64{g.peak}, Judge: result.JudgeValue, PriorArt: "grows with objects",
			Target: result.Target{Bound: result.AtMost, Value: 128, Unit: "MiB"},
		})
	}

	return rows
}

func describe(apart map[string]sample) string {
	var parts []string
	for name, s := range apart {
		parts = append(parts, fmt.Sprintf("%s %.2f ms/s, %.2f KiB/s, %.1f MiB, %.2f requests/s", name, s.cpu, s.network, s.memory, s.requests))
	}
	slices.Sort(parts)

	return strings.Join(parts, "; ")
}
