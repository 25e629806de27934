package run

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/clusterring/clusterring/tools/load/internal/result"
)

// Trial is one side of an experiment. It returns the measured value.
type Trial[T any] func(ctx context.Context) (T, error)

// Rounds measures value and floor in turns (floor and value, then value and floor, and so on), so that other load on
// the machine affects both equally. A warm-up round does not count. If floor is nil, there are no floor results.
//
// It runs the bench's number of rounds. It stops earlier, after at least one round, if a round as slow as the slowest
// one would exceed the budget of the measurement. If a measurement calls Rounds several times, [Bench.Parts] or
// [Bench.Share] divides the budget.
func Rounds[T any](ctx context.Context, b *Bench, value, floor Trial[T]) (values, floors []T, err error) {
	var slowest time.Duration

	for round := range b.rounds + 1 {
		began := b.Clock.Now()
		if round > 1 && !b.deadline.IsZero() && began.Add(slowest).After(b.deadline) {
			b.Progress("%d of %d rounds, to keep the time budget", round-1, b.rounds)
			break
		}

		var v, f T

		turns := []turn[T]{{"floor: ", floor, &f}, {"", value, &v}}
		if round%2 == 1 {
			slices.Reverse(turns)
		}

		for _, t := range turns {
			if t.trial == nil {
				continue
			}

			if *t.result, err = t.trial(ctx); err != nil {
				return nil, nil, fmt.Errorf("round %d: %s%w", round, t.name, err)
			}
		}

		took := b.Clock.Since(began)
		slowest = max(slowest, took)

		shown := figure(v)
		if floor != nil {
			shown += ", floor " + figure(f)
		}

		if round == 0 {
			b.Progress("warm-up: %s", shown)
			continue
		}

		b.Progress("round %d of %d: %s (%.1f s)", round, b.rounds, shown, took.Seconds())

		values = append(values, v)
		if floor != nil {
			floors = append(floors, f)
		}
	}

	return values, floors, nil
}

// turn is the turn of a trial in a round.
type turn[T any] struct {
	name   string // begins its errors
	trial  Trial[T]
	result *T
}

func figure(v any) string {
	if number, ok := v.(float64); ok {
		return fmt.Sprintf("%.4g", number)
	}

	return fmt.Sprintf("%+v", v)
}

// Times returns a bench that makes factor times as many rounds. Many short rounds are less sensitive to other load on
// the machine.
func (b *Bench) Times(factor int) *Bench {
	more := *b
	more.rounds *= factor

	return &more
}

// Part is one of the experiments of a measurement.
type Part struct {
	// Name begins its errors; it may be empty.
	Name string
	// Rows are the ids of all rows and charts that it can measure. A part without them is always wanted.
	Rows []string
	// NotSmall is true if it is made at scale [Small] only when it is asked for.
	NotSmall bool
	// Run reports at least the rows and charts that the bench wants; others are dropped. When it returns, and the bench
	// has been cleaned up, the services must be as before, and what it created must be gone, unless it is the last one on
	// this machine.
	Run func(ctx context.Context, b *Bench) error
}

// Sides are the two sides of an experiment.
type Sides[T any] struct{ Value, Floor Trial[T] }

// Compare measures figures of a value and its floor in [Rounds], and reports them.
func Compare[T any](ctx context.Context, b *Bench, s Sides[T], figures ...Figure[T]) error {
	values, floors, err := Rounds(ctx, b, s.Value, s.Floor)
	if err != nil {
		return err
	}

	for _, f := range figures {
		row := f.Row
		row.Values = result.Column(values, f.Of)

		if row.FloorTitle != "" {
			row.Floor = result.Column(floors, f.Of)
		}
		b.Report(row)
	}

	return nil
}

// Parts runs those of the parts that are wanted, one after the other. Each has an equal share of the time that remains,
// and is cleaned up before the next one.
func (b *Bench) Parts(ctx context.Context, parts ...Part) error {
	parts = slices.DeleteFunc(slices.Clone(parts), func(p Part) bool {
		return len(p.Rows) > 0 && !b.Wants(p.Rows...) || p.NotSmall && b.Scale == Small && !b.Asked(p.Rows...)
	})
	for i, p := range parts {
		part := b.Share(len(parts) - i)
		part.last, part.cleanups = b.last && i == len(parts)-1, &cleanups{}

		err := errors.Join(p.Run(ctx, part), part.cleanUp(ctx))
		if err != nil && p.Name != "" {
			err = fmt.Errorf("%s: %w", p.Name, err)
		}

		if err != nil {
			return err
		}
	}

	return nil
}

// Share returns a bench for one of several parts of a measurement that clean up together. Its budget is an equal share
// of the time that remains, where remaining is the number of remaining parts, including this one.
func (b *Bench) Share(remaining int) *Bench {
	part := *b
	if !b.deadline.IsZero() {
		now := b.Clock.Now()
		part.deadline = now.Add(b.deadline.Sub(now) / time.Duration(remaining))
	}

	return &part
}
