// Package rest measures what sharding costs when nothing happens, and how much memory it takes when much does: the
// services at rest with more and more objects, the rebalancer in a join, the assigner with many rings and shards.
package rest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/tools/load/internal/measure/filled"
	"github.com/clusterring/clusterring/tools/load/internal/objects"
	"github.com/clusterring/clusterring/tools/load/internal/result"
	"github.com/clusterring/clusterring/tools/load/internal/run"
	"github.com/clusterring/clusterring/tools/load/internal/shards"
	"github.com/clusterring/clusterring/tools/load/internal/target"
	"github.com/clusterring/clusterring/tools/load/internal/usage"
)

const (
	mebibyte = 1 << 20
	// grace is how much may grow with the number of objects: 10 %.
	grace = 1.1
)

// Measurements returns what this package measures.
func Measurements() []run.Measurement {
	return []run.Measurement{
		{
			Name: "assigner-memory", Small: 20 * time.Second, Full: 120 * time.Second,
			Parts: []run.Part{{Rows: []string{assignerRow}, Run: rememberedRings}},
		},
		{
			Name: "many-rings", Small: 30 * time.Second, Full: 170 * time.Second, Parts: []run.Part{
				{Rows: []string{ringsCPURow}, Run: crowded},
				{Rows: []string{ringsFairRow}, Run: fairness},
			},
		},
		// The measurement with the most objects is the last one, so that they need not be removed.
		{Name: "many-objects", Parts: []run.Part{objectsPart}},
	}
}

// sample is what a service, or all of them, uses at rest.
type sample struct {
	// cpu is in milliseconds per second, memory in MiB, requests per second.
	cpu, memory, requests float64
}

// window is what the services and the API server used for some time, by name.
type window map[string]sample

// windows returns what is used while nothing happens, several times.
func windows(ctx context.Context, b *run.Bench) (all []window, err error) {
	for range run.Pick(b, 2, 3) {
		before, err := requests(ctx, b)
		if err != nil {
			return nil, err
		}

		began := b.Clock.Now()

		used, err := b.Local.Usage().During(func() error {
			return b.Pause(ctx, run.Pick(b, 2*time.Second, 10*time.Second))
		})
		if err != nil {
			return nil, err
		}

		seconds := b.Clock.Since(began).Seconds()

		after, err := requests(ctx, b)
		if err != nil {
			return nil, err
		}

		w := window{}

		for _, name := range append([]string{target.APIServer}, target.Services...) {
			w[name] = sample{
				cpu: used[name].Milliseconds() / seconds, memory: float64(used[name].Memory) / mebibyte,
				requests: (after[name] - before[name]) / seconds,
			}
		}

		all = append(all, w)
	}
	b.Progress("at rest: %s", all[len(all)-1])

	return all, nil
}

// requests returns how many requests each service has sent, watches included.
func requests(ctx context.Context, b *run.Bench) (sent map[string]float64, err error) {
	sent = map[string]float64{}
	for _, name := range target.Services {
		if sent[name], err = b.Local.Metric(ctx, name, "rest_client_requests_total"); err != nil {
			return nil, err
		}
	}

	return sent, nil
}

// column returns a figure of all services together in each of the windows.
func column(windows []window, of func(sample) float64) []float64 {
	return result.Column(windows, func(w window) (sum float64) {
		for _, name := range target.Services {
			sum += of(w[name])
		}

		return sum
	})
}

func (w window) String() string {
	var parts []string
	for name, s := range w {
		parts = append(parts, fmt.Sprintf("%s %.2f ms/s, %.1f MiB, %.2f requests/s", name, s.cpu, s.memory, s.requests))
	}
	slices.Sort(parts)

	return strings.Join(parts, "; ")
}

func cpuOf(s sample) float64    { return s.cpu }
func memoryOf(s sample) float64 { return s.memory }

// restRows are the rows about the services at rest with many objects and with none.
func restRows(with string, most int, many, none []window) (rows []result.Row) {
	note := fmt.Sprintf("The sum of all four services, just started. With %d: %s. With 0: %s.", most, many[len(many)-1],
		none[len(none)-1])

	for _, kind := range []struct {
		id, what, unit, prior string
		of                    func(sample) float64
	}{
		{manyRestCPU, "CPU", "ms/s", "grows with objects", cpuOf},
		{manyRestMemory, "memory", "MiB", "+50 MB at 8,000", memoryOf},
	} {
		rows = append(rows, result.Row{
			ID: kind.id, Title: "the services at rest with " + with + ": " + kind.what, Unit: kind.unit,
			Values:     column(many, kind.of),
			FloorTitle: "the figure with 0", Floor: column(none, kind.of), Target: result.Max(grace), PriorArt: kind.prior,
			Notes: []string{note},
		})
	}

	return rows
}

// peak returns the peak memory in MiB.
func peak(u usage.Usage) float64 { return float64(u.PeakMemory) / mebibyte }

const assignerRow = "assigner-memory"

// rememberedRings measures the memory of an assigner that has started with all the rings there, once it knows all their
// shards.
func rememberedRings(ctx context.Context, b *run.Bench) error {
	rings, members := run.Pick(b, 5, 50), run.Pick(b, 100, 500)

	namespace, err := b.Local.Namespace(ctx, "load-crowd")
	if err != nil {
		return err
	}

	err = b.Each(ctx, rings, func(b *run.Bench, i int) error {
		_, err := b.Fleet(ctx, shards.Ring{
			Name: "load-crowd-" + strconv.Itoa(i), Namespace: namespace, Main: objects.ConfigMaps.GroupResource(),
			State: "ready", // the lease monitor would take minutes to label so many
		}, members)

		return err
	})
	if err != nil {
		return err
	}

	var values []float64

	for range run.Pick(b, 1, 3) {
		if err := b.Local.Restart(ctx, target.Assigner); err != nil {
			return err
		}
		// The memory that it took to read the Leases is given back within a moment, if ever.
		if err := b.Pause(ctx, run.Pick(b, time.Second, 5*time.Second)); err != nil {
			return err
		}

		used, err := b.Local.Usage().Read()
		if err != nil {
			return err
		}

		u := used[target.Assigner]
		b.Progress("%d shards × %d rings: %.1f MiB, at the peak %.1f MiB", members, rings, float64(u.Memory)/mebibyte,
			peak(u))
		values = append(values, peak(u))
	}

	b.Report(result.Row{
		ID: assignerRow, Title: fmt.Sprintf("assigner memory, %d shards × %d rings", members, rings), Unit: "MiB",
		Values: values,
		Target: result.Max(64), Notes: []string{"The peak after a start with all rings and Leases in place."},
	})

	return nil
}

const (
	ringsCPURow  = "rings-rest-cpu"
	ringsFairRow = "rings-fair"

	// ringShards is the number of shards of each of many rings, ringObjects that of its objects.
	ringShards, ringObjects = 3, 300
	// fairShards is the number of shards of each of two rings.
	fairShards = 20
	// ahead is how long another ring moves objects before the shard of the only object dies.
	ahead = 100 * time.Millisecond
)

// crowded measures many rings at rest.
func crowded(ctx context.Context, b *run.Bench) error {
	count := run.Pick(b, 10, 100)

	alone, err := windows(ctx, b)
	if err != nil {
		return err
	}

	err = b.Each(ctx, count, func(b *run.Bench, i int) error {
		w, err := filled.Open(ctx, b, "load-rings-"+strconv.Itoa(i), ringShards)
		if err != nil {
			return err
		}

		return w.Grow(ctx, ringObjects)
	})
	if err != nil {
		return err
	}

	together, err := windows(ctx, b)
	if err != nil {
		return err
	}

	values := column(together, cpuOf)
	for i, none := range column(alone, cpuOf) {
		values[i] = (values[i] - none) / float64(count)
	}

	b.Report(result.Row{
		ID: ringsCPURow, Title: fmt.Sprintf("the services at rest with %d rings of %d shards: CPU per ring", count,
			ringShards), Unit: "ms/s", Values: values,
		Target: result.Max(0.1), Notes: []string{"The sum of all four services, minus what they use without a ring, per " +
			"ring. Each ring is audited once a minute."},
	})

	return nil
}

// fairness measures whether the only object of a ring waits for the many of another.
func fairness(ctx context.Context, b *run.Bench) error {
	// Each turn takes a shard of either ring, and moves its objects.
	large, err := filled.Open(ctx, b, "load-large", fairShards)
	if err != nil {
		return err
	}

	small, err := filled.Open(ctx, b, "load-single", fairShards)
	if err != nil {
		return err
	}

	many := run.Pick(b, 3000, 20_000)
	if err := errors.Join(large.Grow(ctx, many), small.Grow(ctx, 1)); err != nil {
		return err
	}

	// moved has the shard of the only object die, after something else, and returns when the object had moved.
	moved := func(ctx context.Context, first func() error) (float64, error) {
		list, err := small.Of(ctx, small.Held()...)
		if err != nil || len(list) != 1 {
			return 0, errors.Join(err, fmt.Errorf("the ring has %d objects", len(list)))
		}

		var waited time.Duration

		its := list[0].Labels[contract.ShardLabel(small.Ring.Name)]
		c, err := small.Leave(ctx, []string{its},
			func(ctx context.Context) error {
				began := b.Clock.Now()
				err := first()
				waited = b.Clock.Since(began)

				return errors.Join(err, small.Lose(ctx, its))
			})

		return c.First - waited.Seconds(), err
	}

	return run.Compare(ctx, b, run.Sides[float64]{Value: func(ctx context.Context) (took float64, err error) {
		err = large.Change(ctx, func() error {
			took, err = moved(ctx, func() error {
				return errors.Join(large.Lose(ctx, large.Held()[0]), b.Pause(ctx, ahead))
			})

			return err
		})

		return took, err
	}, Floor: func(ctx context.Context) (float64, error) {
		return moved(ctx, func() error { return nil })
	}}, run.Figure[float64]{Row: result.Row{
		ID: ringsFairRow, Unit: "s", FloorTitle: "while nothing else happens",
		Judge: result.JudgeValue, Target: result.Max(0.5),
		Title: fmt.Sprintf("time until the only object of a ring has moved, while another ring moves %s or more",
			result.Number(float64(many/fairShards))),
	}, Of: run.Itself})
}
