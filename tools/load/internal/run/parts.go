package run

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/clusterring/clusterring/tools/load/internal/result"
)

// Part is one of the experiments of a measurement.
type Part struct {
	// Name begins its errors; it may be empty.
	Name string
	// Rows are the ids of all rows that it can measure, Series all series, without points. A part without them is always wanted.
	Rows   []string
	Series []result.Series
	// NotSmall is true if it is made at scale [Small] only when it is asked for.
	NotSmall bool
	// Run reports at least the rows and points that the bench wants; others are dropped. When it returns, and the bench has been cleaned
	// up, the services must be as before, and what it created must be gone, unless it is the last one on this machine.
	Run func(ctx context.Context, b *Bench) error
}

// IDs returns the ids of its rows and series.
func (p *Part) IDs() []string {
	ids := slices.Clone(p.Rows)
	for _, s := range p.Series {
		ids = append(ids, s.ID)
	}

	return ids
}

// Compare returns a part that measures figures of a value and its floor in [Rounds]. open prepares both sides.
func Compare[T any](figures []Figure[T], open func(context.Context, *Bench) (value, floor Trial[T], err error)) Part {
	return Part{Rows: IDs(figures), Run: func(ctx context.Context, b *Bench) error {
		value, floor, err := open(ctx, b)
		if err != nil {
			return err
		}

		values, floors, err := Rounds(ctx, b, value, floor)
		if err == nil {
			Report(b, values, floors, figures...)
		}

		return err
	}}
}

// Parts runs those of the parts that are wanted, one after the other. Each has an equal share of the time that remains, and is cleaned up
// before the next one.
func (b *Bench) Parts(ctx context.Context, parts ...Part) error {
	parts = slices.DeleteFunc(slices.Clone(parts), func(p Part) bool {
		ids := p.IDs()
		return len(ids) > 0 && !b.Wants(ids...) || p.NotSmall && b.Scale == Small && !b.Asked(ids...)
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

// Share returns a bench for one of several parts of a measurement that clean up together. Its budget is an equal share of the time that
// remains, where remaining is the number of remaining parts, including this one.
func (b *Bench) Share(remaining int) *Bench {
	part := *b
	if !b.deadline.IsZero() {
		now := b.Clock.Now()
		part.deadline = now.Add(b.deadline.Sub(now) / time.Duration(remaining))
	}

	return &part
}
