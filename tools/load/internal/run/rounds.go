package run

import (
	"context"
	"fmt"
	"time"
)

// Trial is one side of an experiment. It returns the measured value.
type Trial[T any] func(ctx context.Context) (T, error)

// Rounds measures value and floor in turns (floor and value, then value and floor, and so on), so that other load on the machine affects
// both equally. A warm-up round does not count. If floor is nil, there are no floor results.
//
// It runs the bench's number of rounds. It stops earlier, after at least one round, if a round as slow as the slowest one would exceed the
// budget of the measurement. If a measurement calls Rounds several times, [Bench.Parts] or [Bench.Share] divides the budget.
func Rounds[T any](ctx context.Context, b *Bench, value, floor Trial[T]) (values, floors []T, err error) {
	var slowest time.Duration

	for round := range b.rounds + 1 {
		began := b.Clock.Now()
		if round > 1 && !b.deadline.IsZero() && began.Add(slowest).After(b.deadline) {
			b.Progress("%d of %d rounds, to keep the time budget", round-1, b.rounds)
			break
		}

		v, f, err := pair(ctx, round%2 == 0, value, floor)
		if err != nil {
			return nil, nil, fmt.Errorf("round %d: %w", round, err)
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

		if round%max(1, b.times) == 0 {
			b.Progress("round %d of %d: %s (%.1f s)", round, b.rounds, shown, took.Seconds())
		}

		values = append(values, v)
		if floor != nil {
			floors = append(floors, f)
		}
	}

	return values, floors, nil
}

// pair runs both trials, the floor first or last.
func pair[T any](ctx context.Context, floorFirst bool, value, floor Trial[T]) (v, f T, err error) {
	least := func() error {
		if floor == nil {
			return nil
		}

		if f, err = floor(ctx); err != nil {
			return fmt.Errorf("floor: %w", err)
		}

		return nil
	}

	if floorFirst {
		if err := least(); err != nil {
			return v, f, err
		}
	}

	if v, err = value(ctx); err != nil || floorFirst {
		return v, f, err
	}

	return v, f, least()
}

func figure(v any) string {
	if number, ok := v.(float64); ok {
		return fmt.Sprintf("%.4g", number)
	}

	return fmt.Sprintf("%+v", v)
}

// Times returns a bench that makes factor times as many rounds, and prints every factor-th one. Many short rounds are less sensitive to
// other load on the machine.
func (b *Bench) Times(factor int) *Bench {
	more := *b
	more.rounds *= factor
	more.times = factor

	return &more
}
