// Package rest measures what sharding costs when nothing happens, and how much memory it takes when much does: the services at rest
// with more and more objects, the rebalancer in a join, the assigner with many rings and shards.
package rest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/clusterring/clusterring/tools/load/internal/result"
	"github.com/clusterring/clusterring/tools/load/internal/run"
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
		{Name: "objects", Small: 40 * time.Second, Full: 400 * time.Second, Parts: []run.Part{objectsPart()}},
		{
			Name: "foreign-writes", Small: 10 * time.Second, Full: 60 * time.Second,
			Parts: []run.Part{foreign()},
		},
		{
			Name: "many-rings", Small: 30 * time.Second, Full: 120 * time.Second, Parts: []run.Part{
				{Rows: []string{ringsCPURow}, Run: crowded},
				{Rows: []string{ringsFairRow}, Run: fairness},
			},
		},
		// The measurement with the most objects is the last one, so that they need not be removed.
		{Name: "many-objects", Parts: []run.Part{manyPart()}},
	}
}

// sample is what a service, or all of them, uses at rest.
type sample struct {
	// cpu is in milliseconds per second, network in KiB/s, memory in MiB, requests per second.
	cpu, network, memory, requests float64
}

// window is what the services and the API server used for some time, by name.
type window map[string]sample

// windows returns what is used while nothing happens, several times.
func windows(ctx context.Context, b *run.Bench) ([]window, error) {
	all := make([]window, run.Pick(b, 2, 3))
	for i := range all {
		w, err := look(ctx, b, run.Pick(b, 2*time.Second, 10*time.Second))
		if err != nil {
			return nil, err
		}

		all[i] = w
	}
	b.Progress("at rest: %s", all[len(all)-1])

	return all, nil
}

func look(ctx context.Context, b *run.Bench, duration time.Duration) (window, error) {
	before, err := requests(ctx, b)
	if err != nil {
		return nil, err
	}

	began := b.Clock.Now()

	used, err := b.Local.Usage().During(func() error { return b.Pause(ctx, duration) })
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
		u := used[name]
		w[name] = sample{
			cpu: u.Milliseconds() / seconds, network: float64(u.Received+u.Sent) / 1024 / seconds,
			memory: float64(u.Memory) / mebibyte, requests: (after[name] - before[name]) / seconds,
		}
	}

	return w, nil
}

// requests returns how many requests each service has sent.
func requests(ctx context.Context, b *run.Bench) (sent map[string]float64, err error) {
	sent = map[string]float64{}
	for _, name := range target.Services {
		if sent[name], err = b.System.Requests(ctx, name); err != nil {
			return nil, err
		}
	}

	return sent, nil
}

// services returns a figure of all services together.
func (w window) services(of func(sample) float64) float64 {
	sum := 0.0
	for _, name := range target.Services {
		sum += of(w[name])
	}

	return sum
}

// column returns a figure of all services together in each of the windows.
func column(windows []window, of func(sample) float64) []float64 {
	return result.Column(windows, func(w window) float64 { return w.services(of) })
}

func (w window) String() string {
	var parts []string
	for name, s := range w {
		parts = append(parts, fmt.Sprintf("%s %.2f ms/s, %.2f KiB/s, %.1f MiB, %.2f requests/s", name, s.cpu, s.network, s.memory, s.requests))
	}
	slices.Sort(parts)

	return strings.Join(parts, "; ")
}

func cpuOf(s sample) float64    { return s.cpu }
func memoryOf(s sample) float64 { return s.memory }

// restRows are the rows about the services at rest with many objects and with none.
func restRows(with string, most int, compared [2][]window) (rows []result.Row) {
	many, none := compared[0], compared[1]
	note := fmt.Sprintf("The sum of all four services, just started. With %d: %s. With 0: %s.", most, many[len(many)-1], none[len(none)-1])

	for _, kind := range []struct {
		id, what, unit, prior string
		of                    func(sample) float64
	}{
		{manyRestCPU, "CPU", "ms/s", "grows with objects", cpuOf},
		{manyRestMemory, "memory", "MiB", "+50 MB at 8,000", memoryOf},
	} {
		rows = append(rows, result.Row{
			ID: kind.id, Title: "the services at rest with " + with + ": " + kind.what, Unit: kind.unit, Values: column(many, kind.of),
			FloorTitle: "the figure with 0", Floor: column(none, kind.of), Target: result.Max(grace), PriorArt: kind.prior, Notes: []string{note},
		})
	}

	return rows
}

// peak returns the peak memory in MiB.
func peak(u usage.Usage) float64 { return float64(u.PeakMemory) / mebibyte }
