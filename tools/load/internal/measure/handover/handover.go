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

// Measurements returns what this package measures.
func Measurements() []run.Measurement {
	m := run.Measurement{Name: "handover", Small: 60 * time.Second, Full: 240 * time.Second}

	for _, children := range []int{0, 3, 30} {
		part := run.Compare(rows(children), func(ctx context.Context, b *run.Bench) (join, raw run.Trial[moved], err error) {
			o, err := open(ctx, b, children)
			return o.join, o.raw, err
		})
		part.Name = fmt.Sprintf("%d children", children)
		m.Parts = append(m.Parts, part)
	}

	return []run.Measurement{m}
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

func rows(children int) []run.Figure[moved] {
	id := func(what string) string { return fmt.Sprintf("handover-%s-%d", what, children) }
	owner := fmt.Sprintf("an owner of %d children", children)

	return []run.Figure[moved]{
		{Row: result.Row{
			ID: id("nobodys"), Title: "time for which " + owner + " belongs to no shard in a planned move, median", Unit: "s",
			Notes: []string{"The time counts from the write by which a shard releases the owner to the write that assigns it to the next shard. An owner without children always belongs to a shard."},
		}, Of: func(m moved) float64 { return m.median }},
		{Row: result.Row{
			ID: id("nobodys-late"), Title: "time for which " + owner + " belongs to no shard in a planned move, 99th percentile", Unit: "s",
		}, Of: func(m moved) float64 { return m.late }},
		{Row: result.Row{
			ID: id("writes"), Title: "writes to move " + owner, Unit: "writes",
			FloorTitle: "one to drain it, one to release it, one for each child, and one to assign it",
		}, Of: func(m moved) float64 { return m.writes }},
		{Row: result.Row{
			ID: id("rate"), Title: fmt.Sprintf("join: owners of %d children that came to the new shard per second", children), Unit: "owners/s",
			FloorTitle: "as many raw PATCHes, same concurrency", Target: result.Min(0.85),
		}, Of: func(m moved) float64 { return m.rate }},
	}
}
