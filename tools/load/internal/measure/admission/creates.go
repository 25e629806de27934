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
	// took is how long it took, server the CPU time of the API server in milliseconds.
	took   time.Duration
	server float64
}

// String shows it in progress.
func (c creation) String() string { return fmt.Sprintf("%.0f creates/s", c.perSecond()) }

func (c creation) perSecond() float64 { return float64(c.objects) / c.took.Seconds() }

// creates measures creates per second. The floor is the no-op webhook. A round has many short turns, of which the median counts, so that
// other load on the machine affects both sides equally.
func (e *experiment) creates(row *result.Row) run.Part {
	return run.Part{Rows: []string{row.ID}, Run: func(ctx context.Context, b *run.Bench) error {
		n, times := run.Pick(b, 75, 250), run.Pick(b, 5, 8)
		in := func(namespace string) run.Trial[creation] {
			batch := objects.Batch{Kind: objects.ConfigMaps, Namespace: namespace, Prefix: "created", Count: n}
			return func(ctx context.Context) (creation, error) { return created(ctx, b, batch, e.label()) }
		}

		turns, lowest, err := run.Rounds(ctx, b.Times(times), in(e.fleet.Ring.Namespace), in(e.namespace))
		if err != nil {
			return err
		}

		values, floors := together(turns, times), together(lowest, times)
		ratio, _, _ := result.Spread(result.Ratios(serverCPU(values), serverCPU(floors)))

		done := *row
		done.Unit, done.Values, done.Floor, done.FloorTitle, done.Target = "creates/s", rates(values), rates(floors), "with the no-op webhook", result.Min(0.98)

		done.Notes = []string{fmt.Sprintf("The API server uses %.2f times as much CPU per create as with the no-op webhook.", ratio)}
		b.Report(done)

		return nil
	}}
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

		return sum.server * 1000 / float64(sum.objects)
	})
}

// created creates the objects of a batch, checks that all have the label, and deletes them.
func created(ctx context.Context, b *run.Bench, batch objects.Batch, label string) (c creation, err error) {
	if err := b.Local.Calm(ctx); err != nil {
		return c, err
	}

	c.server, err = b.Local.Usage().CPU(target.APIServer, func() error {
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

	c.objects = batch.Count

	return c, b.Objects.Delete(ctx, batch)
}
