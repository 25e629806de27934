// Package handover measures what it takes to hand over owners with their controlled objects: how long an owner belongs to no shard, and how many
// writes that takes.
package handover

import (
	"context"
	"fmt"
	"time"

	"github.com/clusterring/clusterring/tools/load/internal/result"
	"github.com/clusterring/clusterring/tools/load/internal/run"
)

// Measurements returns what this package measures.
func Measurements() []run.Measurement {
	return []run.Measurement{{
		Name: "handover", Small: 20 * time.Second, Full: 80 * time.Second,
		Parts: []run.Part{run.Compare(rows(), func(ctx context.Context, b *run.Bench) (join, raw run.Trial[moved], err error) {
			o, err := open(ctx, b)
			least := func(context.Context) (moved, error) { return moved{writes: writes}, nil }

			return o.join, least, err
		})},
	}}
}

// moved is what one join has done to owners.
type moved struct {
	owners int
	// median and late are how long owners belonged to no shard, in seconds: the median and the 99th percentile.
	median, late float64
	// writes is the number of writes per owner.
	writes float64
}

func (m moved) String() string {
	return fmt.Sprintf("%d owners, without a shard for %.3f s (99%%: %.3f s), %.1f writes each", m.owners, m.median, m.late, m.writes)
}

func rows() []run.Figure[moved] {
	owner := fmt.Sprintf("an owner of %d children", children)

	return []run.Figure[moved]{
		{Row: result.Row{
			ID: "handover-nobodys", Title: "time for which " + owner + " belongs to no shard in a planned move, median", Unit: "s",
			Notes: []string{"The time counts from the write by which a shard releases the owner to the write that assigns it to the next shard. An owner without children always belongs to a shard."},
		}, Of: func(m moved) float64 { return m.median }},
		{Row: result.Row{
			ID: "handover-writes", Title: "writes to move " + owner, Unit: "writes",
			FloorTitle: "one to drain it, one to release it, one for each child, and one to assign it",
		}, Of: func(m moved) float64 { return m.writes }},
	}
}
