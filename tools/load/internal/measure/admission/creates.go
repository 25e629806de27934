package admission

import (
	"context"
	"errors"
	"fmt"
	"strconv"
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

// throughput measures creates per second. Turns are short and many, and the median counts of those of a round, so that what else the
// machine does hits both sides.
// The floor's objects are created in a namespace of the no-op webhook.
func (e *experiment) throughput(ctx context.Context, b *run.Bench, least string) (values, floors [][]creation, err error) {
	n, times := run.Pick(b, 75, 250), run.Pick(b, 5, 8)
	mine := objects.Batch{Kind: objects.ConfigMaps, Namespace: e.fleet.Ring.Namespace, Prefix: "created", Count: n, Concurrency: run.Concurrency}
	other := mine
	other.Namespace = least
	turns, lowest, err := run.Rounds(ctx, b.Times(times), func(ctx context.Context) (creation, error) {
		return created(ctx, b, mine, e.label())
	}, func(ctx context.Context) (creation, error) {
		return created(ctx, b, other, e.label())
	})

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

// matched compares with the no-op webhook under the match conditions of the ring's registration.
func (e *experiment) matched(ctx context.Context, b *run.Bench, size int) (err error) {
	s := b.System

	registration, err := registered(ctx, s.Client, e.fleet.Ring.Name)
	if err != nil {
		return err
	}

	namespace, err := s.Namespace(ctx, "load-matched")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.deregister(context.WithoutCancel(ctx), matched)) }()

	if err := e.register(ctx, matched, namespace, registration.MatchConditions); err != nil {
		return err
	}

	if err := called(ctx, b.Objects, objects.Batch{Kind: objects.ConfigMaps, Namespace: namespace, Prefix: "probe"}, e.label()); err != nil {
		return err
	}

	values, floors, err := e.throughput(ctx, b, namespace)
	if err != nil {
		return err
	}

	row := e.createsRow(size, values, floors)
	row.ID, row.Title, row.PriorArt = matched, fmt.Sprintf("the same, %d shards, if the no-op webhook has the match condition of the assigner's", size), ""
	row.FloorTitle += " under that condition"
	row.Notes = append(row.Notes, "The condition keeps the rebalancer's own writes from waiting for a webhook that hangs. The API server evaluates it for each write.")
	e.rows = append(e.rows, row)

	return nil
}

func (e *experiment) createsRow(size int, values, floors [][]creation) result.Row {
	ratio, _, _ := result.Spread(result.Ratios(serverCPU(values), serverCPU(floors)))
	id := creates + strconv.Itoa(size)

	return result.Row{
		ID: id, Title: fmt.Sprintf("create throughput with the webhook, %d shards", size), Unit: "creates/s", Values: rates(values),
		FloorTitle: "with the no-op webhook", Floor: rates(floors), Judge: result.JudgeRatio, PriorArt: priorArt[id],
		Target: result.Target{Bound: result.AtLeast, Value: 0.98, Unit: "×"},
		Notes:  []string{fmt.Sprintf("CPU time of the API server per create: %.2f times that with the no-op webhook", ratio)},
	}
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

	without, err := b.Objects.Count(ctx, objects.Selection{Kind: batch.Kind, Namespace: batch.Namespace, Labels: "!" + label})
	if err != nil {
		return c, err
	}

	if without > 0 {
		return c, fmt.Errorf("%d of %d objects in %s were created without the label: the webhook was not called", without, batch.Count, batch.Namespace)
	}

	c.objects, c.server = batch.Count, used[target.APIServer].CPU

	return c, b.Objects.Delete(ctx, batch)
}
