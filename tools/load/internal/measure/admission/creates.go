package admission

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/clusterring/clusterring/tools/load/internal/objects"
	"github.com/clusterring/clusterring/tools/load/internal/result"
	"github.com/clusterring/clusterring/tools/load/internal/run"
	"github.com/clusterring/clusterring/tools/load/internal/system"
	"github.com/clusterring/clusterring/tools/load/internal/usage"
)

// creation is what creating objects came to.
type creation struct {
	objects int
	// took is how long it took, server the CPU time of the API server.
	took, server time.Duration
}

// String shows it in progress.
func (c creation) String() string { return fmt.Sprintf("%.0f creates/s", c.perSecond()) }

func (c creation) perSecond() float64 { return float64(c.objects) / c.took.Seconds() }

// serverCPU returns microseconds per object.
func (c creation) serverCPU() float64 {
	return float64(c.server.Nanoseconds()) / float64(time.Microsecond) / float64(c.objects)
}

// throughput measures creates per second. Turns are short, so that what else the machine does hits both sides, but one short turn may
// have a garbage collection of the API server more than another, which is as much as hundreds of creates: several make a round.
func (e *experiment) throughput(ctx context.Context, b *run.Bench) (values, floors []creation, err error) {
	n, times := run.Pick(b, 150, 250), run.Pick(b, 3, 8)
	values, floors, err = run.Rounds(ctx, b.Times(times), func(ctx context.Context) (creation, error) {
		return created(ctx, b, objects.Batch{Kind: objects.ConfigMaps, Namespace: e.ring.Namespace, Prefix: "created", Count: n, Concurrency: concurrency}, e.label())
	}, func(ctx context.Context) (creation, error) {
		return created(ctx, b, objects.Batch{Kind: objects.ConfigMaps, Namespace: e.noop.namespace, Prefix: "created", Count: n, Concurrency: concurrency}, e.label())
	})
	return together(values, times), together(floors, times), err
}

// together adds up turns, so many at a time. Turns that are left over belong to the last.
func together(turns []creation, times int) []creation {
	var rounds []creation
	for i, turn := range turns {
		if i%times == 0 && (i == 0 || len(turns)-i >= times) {
			rounds = append(rounds, creation{})
		}
		round := &rounds[len(rounds)-1]
		round.objects += turn.objects
		round.took += turn.took
		round.server += turn.server
	}
	return rounds
}

func (e *experiment) createsRow(size int, values, floors []creation) result.Row {
	ratio, _, _ := result.Spread(result.Ratios(each(values, creation.serverCPU), each(floors, creation.serverCPU)))
	id := creates + strconv.Itoa(size)
	return result.Row{
		ID: id, Title: fmt.Sprintf("create throughput with the webhook, %d shards", size), Unit: "creates/s", Values: each(values, creation.perSecond),
		FloorTitle: "with the no-op webhook", Floor: each(floors, creation.perSecond), Judge: result.JudgeRatio, PriorArt: priorArt[id],
		Target: result.Target{Bound: result.AtLeast, Value: 0.98, Unit: "×"},
		Notes:  []string{fmt.Sprintf("CPU time of the API server per create: %.2f times that with the no-op webhook", ratio)},
	}
}

// each returns one figure of every round.
func each(rounds []creation, figure func(creation) float64) []float64 {
	figures := make([]float64, len(rounds))
	for i, r := range rounds {
		figures[i] = figure(r)
	}
	return figures
}

// created creates the objects of a batch, checks that all have the label, and deletes them.
func created(ctx context.Context, b *run.Bench, batch objects.Batch, label string) (c creation, err error) {
	reader := b.System.Usage()
	before, err := reader.Read(ctx)
	if err != nil {
		return c, err
	}
	began := b.Clock.Now()
	if err := b.Objects.Create(ctx, batch); err != nil {
		return c, err
	}
	took := b.Clock.Since(began)
	after, err := reader.Read(ctx)
	if err != nil {
		return c, err
	}
	without, err := b.Objects.Count(ctx, objects.Selection{Kind: batch.Kind, Namespace: batch.Namespace, Labels: "!" + label})
	if err != nil {
		return c, err
	}
	if without > 0 {
		return c, fmt.Errorf("%d of %d objects in %s were created without the label: the webhook was not called", without, batch.Count, batch.Namespace)
	}
	c = creation{objects: batch.Count, took: took, server: usage.Difference(before, after)[system.APIServer].CPU}
	return c, b.Objects.Delete(ctx, batch)
}
