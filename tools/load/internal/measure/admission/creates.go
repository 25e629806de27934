package admission

import (
	"context"
	"fmt"
	"time"

	"github.com/clusterring/clusterring/tools/load/internal/objects"
	"github.com/clusterring/clusterring/tools/load/internal/result"
	"github.com/clusterring/clusterring/tools/load/internal/run"
	"github.com/clusterring/clusterring/tools/load/internal/target"
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

// throughput measures creates per second, for the floor in a namespace of the no-op webhook. A round has many short turns, of which the
// median counts, so that other load on the machine affects both sides equally.
func (e *experiment) throughput(ctx context.Context, b *run.Bench, least string) (values, floors [][]creation, err error) {
	n, times := run.Pick(b, 75, 250), run.Pick(b, 5, 8)
	in := func(namespace string) run.Trial[creation] {
		batch := objects.Batch{Kind: objects.ConfigMaps, Namespace: namespace, Prefix: "created", Count: n}
		return func(ctx context.Context) (creation, error) { return created(ctx, b, batch, e.label()) }
	}
	turns, lowest, err := run.Rounds(ctx, b.Times(times), in(e.fleet.Ring.Namespace), in(least))

	return together(turns, times), together(lowest, times), err
}

// together puts so many turns into a round. Turns that are left over belong to the last.
func together(turns []creation, times int) [][]creation {
	var rounds [][]creation

	for i, turn := range turns {
		if i%times == 0 && (i == 0 || len(turns)-i >= times) {
			rounds = append(rounds, nil)
		}

		last := len(rounds) - 1
		rounds[last] = append(rounds[last], turn)
	}

	return rounds
}

// createsRow completes a row about creates.
func createsRow(row result.Row, values, floors [][]creation) result.Row {
	ratio, _, _ := result.Spread(result.Ratios(serverCPU(values), serverCPU(floors)))

	row.Unit, row.Values, row.Floor = "creates/s", rates(values), rates(floors)
	row.PriorArt, row.Target = priorArt[row.ID], result.Min(0.98)
	row.Notes = append([]string{fmt.Sprintf("The API server uses %.2f times as much CPU per create as with the no-op webhook.", ratio)}, row.Notes...)

	return row
}

// rates returns the creates per second of each round: the median of its turns.
func rates(rounds [][]creation) []float64 {
	return result.Column(rounds, func(turns []creation) float64 {
		median, _, _ := result.Spread(result.Column(turns, creation.perSecond))
		return median
	})
}

// serverCPU returns the CPU time of the API server per object, of each round, in microseconds. The system accounts for it too coarsely
// for single turns.
func serverCPU(rounds [][]creation) []float64 {
	return result.Column(rounds, func(turns []creation) float64 {
		var sum creation
		for _, turn := range turns {
			sum.objects += turn.objects
			sum.server += turn.server
		}

		return float64(sum.server.Nanoseconds()) / float64(time.Microsecond) / float64(sum.objects)
	})
}

// created creates the objects of a batch, checks that all have the label, and deletes them.
func created(ctx context.Context, b *run.Bench, batch objects.Batch, label string) (c creation, err error) {
	if err := b.Local.Calm(ctx); err != nil {
		return c, err
	}

	used, err := b.Local.Usage().During(func() error {
		began := b.Clock.Now()
		defer func() { c.took = b.Clock.Since(began) }()

		return b.Objects.Create(ctx, batch)
	})
	if err != nil {
		return c, err
	}

	without, err := b.Objects.List(ctx, objects.Selection{Kind: batch.Kind, Namespace: batch.Namespace, Labels: "!" + label})
	if err != nil {
		return c, err
	}

	if len(without) > 0 {
		return c, fmt.Errorf("%d of %d objects in %s were created without the label: the webhook was not called", len(without), batch.Count, batch.Namespace)
	}

	c.objects, c.server = batch.Count, used[target.APIServer].CPU

	return c, b.Objects.Delete(ctx, batch)
}
