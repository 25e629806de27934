// Package handover measures what it takes to hand over owners with their controlled objects: how long an owner belongs to no shard, how many
// writes that takes, and how fast it is. The floor is the same writes, sent raw.
package handover

import (
	"context"
	"fmt"
	"time"

	"github.com/clusterring/clusterring/tools/load/internal/result"
	"github.com/clusterring/clusterring/tools/load/internal/run"
)

// sizes are the numbers of children of an owner.
var sizes = []int{0, 3, 30}

// idsAt returns the ids of the rows about owners with so many children.
func idsAt(children int) (median, late, writes, rate string) {
	return fmt.Sprintf("handover-nobodys-%d", children), fmt.Sprintf("handover-nobodys-late-%d", children),
		fmt.Sprintf("handover-writes-%d", children), fmt.Sprintf("handover-rate-%d", children)
}

// Measurements returns what this package measures.
func Measurements() []run.Measurement {
	var ids []string

	for _, children := range sizes {
		median, late, writes, rate := idsAt(children)
		ids = append(ids, median, late, writes, rate)
	}

	return []run.Measurement{{Name: "handover", Rows: ids, Small: 60 * time.Second, Full: 240 * time.Second, Run: all}}
}

// moved is what one join has done to owners.
type moved struct {
	owners int
	// median and late are how long owners belonged to no shard, in seconds: the median and the 99th percentile.
	median, late float64
	// writes is the number of writes per owner, rate the number of owners that came to their new shard per second.
	writes, rate float64
}

func (m moved) String() string {
	return fmt.Sprintf("%d owners, without a shard for %.3f s (99%%: %.3f s), %.1f writes each, %.0f/s", m.owners, m.median, m.late, m.writes, m.rate)
}

func all(ctx context.Context, b *run.Bench) error {
	for i, children := range sizes {
		median, late, writes, rate := idsAt(children)
		if !b.Wants(median, late, writes, rate) {
			continue
		}

		err := b.Part(ctx, len(sizes)-i, func(b *run.Bench) error {
			o, err := open(ctx, b, children)
			if err != nil {
				return err
			}

			values, floors, err := run.Rounds(ctx, b, o.join, o.raw)
			if err == nil {
				run.Report(b, values, floors, rows(children)...)
			}

			return err
		})
		if err != nil {
			return fmt.Errorf("%d children: %w", children, err)
		}
	}

	return nil
}

func rows(children int) []run.Figure[moved] {
	median, late, writes, rate := idsAt(children)
	owner := fmt.Sprintf("an owner of %d children", children)

	return []run.Figure[moved]{
		{Row: result.Row{
			ID: median, Title: "time for which " + owner + " belongs to no shard in a planned move, median", Unit: "s",
			Notes: []string{"The time counts from the write by which a shard releases the owner to the write that assigns it to the next shard. An owner without children always belongs to a shard."},
		}, Of: func(m moved) float64 { return m.median }},
		{Row: result.Row{ID: late, Title: "time for which " + owner + " belongs to no shard in a planned move, 99th percentile", Unit: "s"}, Of: func(m moved) float64 { return m.late }},
		{Row: result.Row{
			ID: writes, Title: "writes to move " + owner, Unit: "writes",
			FloorTitle: "one to drain it, one to release it, one for each child, and one to assign it",
		}, Of: func(m moved) float64 { return m.writes }},
		{Row: result.Row{
			ID: rate, Title: fmt.Sprintf("join: owners of %d children that came to the new shard per second", children), Unit: "owners/s",
			FloorTitle: "as many raw PATCHes, same concurrency", Target: result.Min(0.85),
		}, Of: func(m moved) float64 { return m.rate }},
	}
}

// quantiles returns the median and the 99th percentile of sorted times; 0 if there are none.
func quantiles(times []time.Duration) (median, late float64) {
	if len(times) == 0 {
		return 0, 0
	}

	return times[len(times)/2].Seconds(), times[min(len(times)-1, len(times)*99/100)].Seconds()
}
