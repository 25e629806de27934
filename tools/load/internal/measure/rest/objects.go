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
	restChart   = "rest-cpu-by-objects"
	memoryChart = "rest-memory-by-objects"
	passChart   = "pass-by-objects"
	peakChart   = "rebalancer-peak-memory-by-objects"

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

var objectsPart = run.Part{Run: byObjects, Rows: []string{
	restChart, memoryChart, passChart, peakChart, manyRestCPU, manyRestMemory, manyDeath, manyAudit, manyPeak, manyServers,
}}

// experiment is a ring whose objects become more and more. None is what is used at rest without objects.
type experiment struct {
	*filled.Ring

	bench *run.Bench
	none  []window
	heap  float64 // of the API server without objects
}

// byObjects measures with more and more objects, and reports what it finds with the most.
func byObjects(ctx context.Context, b *run.Bench) error {
	sizes := run.Pick(b, []int{0, 2000, 20_000}, []int{0, 10_000, 100_000})
	if b.Scale == run.Million {
		sizes = append(sizes, 1_000_000)
	}

	w, err := filled.Open(ctx, b, "load-many", run.Pick(b, 10, 100))
	if err != nil {
		return err
	}

	e := &experiment{Ring: w, bench: b}
	if e.none, err = e.atRest(ctx); err != nil {
		return err
	}

	if e.heap, err = b.Local.Heap(ctx); err != nil {
		return err
	}

	for _, size := range sizes[1:] {
		if err := w.Grow(ctx, size); err != nil {
			return err
		}

		if err := e.measure(ctx, size == sizes[len(sizes)-1]); err != nil {
			return fmt.Errorf("%d objects: %w", size, err)
		}
	}

	return nil
}

// atRest measures the services at rest, after a start.
func (e *experiment) atRest(ctx context.Context) ([]window, error) {
	// With the whole budget, an audit follows a minute after their start, not an hour.
	if err := e.Restart(ctx, "--audit-budget=1"); err != nil {
		return nil, err
	}

	now, err := windows(ctx, e.bench)
	if err == nil {
		e.grow(restChart, "CPU of all services at rest", "ms/s", column(now, cpuOf)...)
		e.grow(memoryChart, "Memory of all services at rest", "MiB", column(now, memoryOf)...)
	}

	return now, err
}

// grow adds values with the objects that there are to a chart.
func (e *experiment) grow(id, title, unit string, values ...float64) {
	e.bench.Grow(result.Chart{ID: id, Title: title, X: "objects", Y: unit}, e.Objects(), values, nil)
}

// measure measures the services with the objects that there are: at rest, then an audit, then a death and a join. It
// reports rows if these are the most objects.
func (e *experiment) measure(ctx context.Context, most bool) error {
	now, err := e.atRest(ctx)
	if err != nil {
		return err
	}

	heap, err := e.bench.Local.Heap(ctx)
	if err != nil {
		return err
	}

	if most {
		if err := e.audit(ctx); err != nil {
			return err
		}
	}
	// Audits, which would go over all objects during the moves, come as by default.
	if err := e.Restart(ctx); err != nil {
		return err
	}

	round, err := e.Round(ctx, 1)
	if err != nil {
		return err
	}

	b, with := e.bench, e.String()
	b.Progress("%s, %+v", with, round)

	used, err := b.Local.Usage().Read()
	if err != nil {
		return err
	}

	memory := peak(used[target.Rebalancer])
	e.grow(passChart, "API server and rebalancer CPU of the pass over all objects that follows a change, per object", "µs",
		round.Died.Pass)
	e.grow(peakChart, "Peak of the rebalancer's memory, from its start through a death and a join", "MiB", memory)

	if !most {
		return nil
	}

	var peaks []string
	for _, name := range slices.Sorted(maps.Keys(used)) {
		peaks = append(peaks, fmt.Sprintf("%s %.1f MiB", name, peak(used[name])))
	}

	b.Report(restRows(with, e.Objects(), now, e.none)...)
	b.Report(
		result.Row{
			ID: manyDeath, Title: "objects moved per second after a shard's death, " + with, Unit: "objects/s",
			Values: []float64{round.Died.Rate}, FloorTitle: "raw metadata PATCH, same concurrency",
			Floor: []float64{round.Least.Rate}, Target: result.Min(0.85),
		},
		result.Row{
			ID: manyPeak, Title: "rebalancer memory at its peak, from its start through a death and a join, " + with,
			Unit: "MiB", Values: []float64{memory}, Target: result.Max(128),
			Notes: []string{"At their peaks: " + strings.Join(peaks, ", ") + "."},
		},
		result.Row{
			ID: manyServers, Title: "API server memory per object, " + with, Unit: "KiB",
			Values: []float64{(heap - e.heap) / 1024 / float64(e.Objects())},
			Notes: []string{"The API server caches each ConfigMap, with or without sharding. Without garbage, which takes as " +
				"much again."},
		},
	)

	return nil
}

// String describes the ring.
func (e *experiment) String() string {
	return fmt.Sprintf("%s objects, %d shards", result.Number(float64(e.Objects())), len(e.Held()))
}

// audit waits for an audit, and reports what it takes per object. The services must have started less than a minute
// ago.
func (e *experiment) audit(ctx context.Context) error {
	b, idle := e.bench, e.none[len(e.none)-1]
	// It takes a minute to come.
	if b.Scale == run.Small && !b.Asked(manyAudit) || !b.Wants(manyAudit) {
		return nil
	}

	const (
		patience = 3 * time.Minute
		// At rest, the rebalancer receives fewer than still bytes between two looks, and in an audit more than so many bytes
		// of each object. An audit is over after so many looks at rest.
		look, still, each, over = 200 * time.Millisecond, 8 << 10, 20, 5
	)

	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("no audit in %s", patience))
	defer cancel()

	began := b.Clock.Now()

	before, err := b.Local.Usage().Read()
	if err != nil {
		return err
	}

	last, looks := before, 0
	for ; ; looks++ {
		if err := b.Pause(ctx, look); err != nil {
			return err
		}

		now, err := b.Local.Usage().Read()
		if err != nil {
			return err
		}

		used := usage.Difference(before, now)

		switch {
		case now[target.Rebalancer].Received-last[target.Rebalancer].Received > still:
			looks = -1
		case looks < over:
		case used[target.Rebalancer].Received <= each*int64(e.Objects()): // it has not begun
			before, began, looks = now, b.Clock.Now(), 0
		default:
			every := max(time.Minute, time.Duration(float64(e.Objects())*perObject/budget)*time.Microsecond).Round(time.Second)
			resting := (idle[target.APIServer].cpu + idle[target.Rebalancer].cpu) * b.Clock.Since(began).Seconds()
			cpu := (filled.Both(used) - resting) * 1000 / float64(e.Objects())
			b.Report(result.Row{
				ID: manyAudit, Title: "audit of all objects, CPU of API server and rebalancer per object, " + e.String(),
				Unit: "µs", Values: []float64{cpu}, Target: result.Max(perObject), Notes: []string{fmt.Sprintf(
					"Minus what both use at rest without objects. By default, the rebalancer audits this many objects every %s: it "+
						"plans for %d µs per object, and for %g%% of a core.", every, perObject, budget*100)},
			})

			return nil
		}

		last = now
	}
}
