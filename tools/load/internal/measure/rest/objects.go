package rest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/clusterring/clusterring/tools/load/internal/measure/filled"
	"github.com/clusterring/clusterring/tools/load/internal/result"
	"github.com/clusterring/clusterring/tools/load/internal/run"
	"github.com/clusterring/clusterring/tools/load/internal/target"
	"github.com/clusterring/clusterring/tools/load/internal/usage"
)

const (
	restSeries      = "rest-cpu-by-objects"
	memorySeries    = "rest-memory-by-objects"
	rateSeries      = "moves-by-objects"
	apiServerSeries = "moves-apiserver-by-objects"
	cpuSeries       = "moves-rebalancer-by-objects"
	passSeries      = "pass-by-objects"
	peakSeries      = "rebalancer-peak-memory-by-objects"

	// shardCount is the number of shards before one more joins.
	shardCount = 20
)

func objectsPart() run.Part {
	over := func(id, title, unit string) result.Series {
		return result.Series{ID: id, Title: title, Over: result.OverObjects, Unit: unit}
	}

	return run.Part{
		Run: byObjects,
		Series: []result.Series{
			over(restSeries, "CPU of all services at rest", "ms/s"),
			over(memorySeries, "Memory of all services at rest", "MiB"),
			over(rateSeries, "Objects moved per second after the death of one of 20 shards", "objects/s"),
			over(apiServerSeries, "API server CPU per moved object, after the death of one of 20 shards", "ms"),
			over(cpuSeries, "Rebalancer CPU per moved object, after the death of one of 20 shards", "ms"),
			over(passSeries, "API server and rebalancer CPU of the pass over all objects that follows a change, per object",
				"µs"),
			over(peakSeries, "Peak of the rebalancer's memory when a shard joins 19", "MiB"),
		},
	}
}

// byObjects measures with more and more objects.
func byObjects(ctx context.Context, b *run.Bench) error {
	w, err := filled.Open(ctx, b, "load-objects", shardCount)
	if err != nil {
		return err
	}

	sizes := run.Pick(b, []int{0, 500, 2500}, []int{0, 1000, 10_000, 200_000})
	for _, size := range sizes {
		if err := w.Grow(ctx, size); err != nil {
			return fmt.Errorf("%d objects: %w", size, err)
		}
		// The services do not know the objects that were written behind the API server's back until they start again.
		if err := w.Restart(ctx); err != nil {
			return fmt.Errorf("%d objects: %w", size, err)
		}

		if b.Wants(restSeries, memorySeries) {
			now, err := windows(ctx, b)
			if err != nil {
				return fmt.Errorf("%d objects: %w", size, err)
			}
			b.Point(restSeries, size, column(now, cpuOf), nil)
			b.Point(memorySeries, size, column(now, memoryOf), nil)
		}

		if size > 0 && b.Wants(rateSeries, apiServerSeries, cpuSeries, passSeries, peakSeries) {
			if err := moving(ctx, b, w); err != nil {
				return fmt.Errorf("%d objects: %w", size, err)
			}
		}
	}

	return nil
}

// moving measures a death and a join.
func moving(ctx context.Context, b *run.Bench, w *filled.Ring) error {
	size := w.Objects()

	least, err := w.Least(ctx, 1)
	if err != nil {
		return err
	}

	died, err := w.Die(ctx, 1)
	if err != nil {
		return err
	}

	b.Progress("%d objects, a death: %v; floor: %v", size, died, least)
	b.Point(rateSeries, size, []float64{died.Rate}, []float64{least.Rate})
	b.Point(apiServerSeries, size, []float64{died.APIServer}, []float64{least.APIServer})
	b.Point(cpuSeries, size, []float64{died.Rebalancer}, nil)
	b.Point(passSeries, size, []float64{died.Pass}, nil)

	reader := b.Local.Usage()
	if err := reader.ResetPeaks(); err != nil {
		return err
	}

	joined, err := w.Join(ctx, 1)
	if err != nil {
		return err
	}

	used, err := reader.Read()
	if err != nil {
		return err
	}

	memory := []float64{peak(used[target.Rebalancer])}
	b.Progress("%d objects, a join: %v; peak of the rebalancer's memory: %.1f MiB", size, joined, memory[0])
	b.Point(peakSeries, size, memory, nil)

	return nil
}

const (
	manyRestCPU    = "many-rest-cpu"
	manyRestMemory = "many-rest-memory"
	manyDeath      = "many-death"
	manyAudit      = "many-audit"
	manyPeak       = "many-rebalancer-peak-memory"
	manyServers    = "many-apiserver-memory"

	// perObject is the target for the audit of an object, in microseconds.
	perObject = 25
	// budget is the default --audit-budget of the rebalancer.
	budget = 0.01
)

func manyPart() run.Part {
	return run.Part{
		Rows: []string{manyRestCPU, manyRestMemory, manyDeath, manyAudit, manyPeak, manyServers}, Run: many,
	}
}

// multitude is a ring with very many objects and shards.
type multitude struct {
	*filled.Ring

	bench *run.Bench
	// most is the number of objects in the end.
	most int
	// idle is what API server and rebalancer take without objects, in ms/s.
	idle float64
}

// many measures the services with very many objects: at rest, then an audit, then a death and a join.
func many(ctx context.Context, b *run.Bench) error {
	shards, most := run.Pick(b, 10, 100), run.Pick(b, 20_000, 100_000)
	if b.Scale == run.Million {
		most = 1_000_000
	}

	w, err := filled.Open(ctx, b, "load-many", shards)
	if err != nil {
		return err
	}

	m := &multitude{Ring: w, bench: b, most: most}
	with := fmt.Sprintf("%s objects, %d shards", result.Number(float64(most)), shards)

	none, err := m.rest(ctx, 0)
	if err != nil {
		return err
	}

	server := none[len(none)-1][target.APIServer]
	m.idle = server.cpu + none[len(none)-1][target.Rebalancer].cpu

	now, err := m.rest(ctx, most)
	if err != nil {
		return err
	}

	audits, err := m.audit(ctx)
	if err != nil {
		return err
	}

	died, least, err := m.move(ctx)
	if err != nil {
		return err
	}

	used, err := b.Local.Usage().Read()
	if err != nil {
		return err
	}

	var peaks []string
	for _, name := range slices.Sorted(maps.Keys(used)) {
		peaks = append(peaks, fmt.Sprintf("%s %.1f MiB", name, peak(used[name])))
	}

	b.Report(restRows(with, most, [2][]window{now, none})...)

	if len(audits) > 0 {
		every := max(time.Minute, time.Duration(float64(most)*perObject/budget)*time.Microsecond).Round(time.Second)
		b.Report(result.Row{
			ID: manyAudit, Title: "audit of all objects, CPU of API server and rebalancer per object, " + with, Unit: "µs",
			Values: audits,
			Target: result.Max(perObject), Notes: []string{fmt.Sprintf(
				"Minus what both use at rest without objects. By default, the rebalancer audits this many objects every %s: it "+
					"plans for %d µs per object, and for %g%% of a core.",
				every, perObject, budget*100)},
		})
	}

	b.Report(
		result.Row{
			ID: manyDeath, Title: "objects moved per second after a shard's death, " + with, Unit: "objects/s",
			Values:     []float64{died.Rate},
			FloorTitle: "raw metadata PATCH, same concurrency", Floor: []float64{least.Rate}, Target: result.Min(0.85),
		},
		result.Row{
			ID: manyPeak, Title: "rebalancer memory at its peak, from its start through a death and a join, " + with,
			Unit:   "MiB",
			Values: []float64{peak(used[target.Rebalancer])}, Target: result.Max(128),
			Notes: []string{"At their peaks: " + strings.Join(peaks, ", ") + "."},
		},
		result.Row{
			ID: manyServers, Title: "API server memory per object, " + with, Unit: "KiB",
			Values: []float64{(now[len(now)-1][target.APIServer].memory - server.memory) * 1024 / float64(most)},
			Notes:  []string{"The API server caches each ConfigMap, with or without sharding."},
		},
	)

	return nil
}

// grow creates objects until there are as many as given.
func (m *multitude) grow(ctx context.Context, size int) error {
	began := m.bench.Clock.Now()
	err := m.Grow(ctx, size)
	m.bench.Progress("%d objects: created in %.1f s", size, m.bench.Clock.Since(began).Seconds())

	return err
}

// rest measures the services at rest with so many objects.
func (m *multitude) rest(ctx context.Context, size int) ([]window, error) {
	if err := m.grow(ctx, size); err != nil {
		return nil, err
	}
	// With the whole budget, an audit follows a minute after the start of the services, not an hour.
	if err := m.Restart(ctx, "--audit-budget=1"); err != nil {
		return nil, err
	}

	return windows(ctx, m.bench)
}

// move has a shard die, and another one join. The floor is as many raw patches.
func (m *multitude) move(ctx context.Context) (died, least filled.Cost, err error) {
	// Audits, which would go over all objects during the moves, come as by default.
	if err := m.Restart(ctx); err != nil {
		return died, least, err
	}

	if least, err = m.Raw(ctx, 1, 0); err != nil {
		return died, least, err
	}

	if died, err = m.Die(ctx, 1); err != nil {
		return died, least, err
	}

	joined, err := m.Join(ctx, 1)
	m.bench.Progress("%d objects, a death: %v; floor: %v; a join: %v", m.most, died, least, joined)

	return died, least, err
}

// audit waits for an audit, and returns what it takes per object, in microseconds. The services must have started less
// than a minute ago.
func (m *multitude) audit(ctx context.Context) ([]float64, error) {
	b := m.bench
	// It takes a minute to come.
	if b.Scale == run.Small && !b.Asked(manyAudit) || !b.Wants(manyAudit) {
		return nil, nil
	}

	const (
		patience = 3 * time.Minute
		// The rebalancer receives more than so many bytes of each object. An audit is over after so many looks at rest.
		each, over = 20, 5
	)

	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("no audit in %s", patience))
	defer cancel()

	before, err := b.Local.Usage().Read()
	if err != nil {
		return nil, err
	}

	for {
		from := b.Clock.Now()

		now, err := filled.Rest(ctx, b, over)
		if err != nil {
			return nil, err
		}

		used := usage.Difference(before, now)
		if used[target.Rebalancer].Received > each*int64(m.most) {
			took := b.Clock.Since(from).Seconds()
			cpu := (used[target.APIServer].Milliseconds() +
				used[target.Rebalancer].Milliseconds() - m.idle*took) * 1000 / float64(m.most)
			b.Progress("%d objects, an audit: %.1f µs per object, %.1f s", m.most, cpu, took)

			return []float64{cpu}, nil
		}

		before = now // it has not begun
	}
}
