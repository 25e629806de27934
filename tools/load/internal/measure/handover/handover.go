// Package handover measures what it takes to hand owners over with all that follows them: how long an owner is nobody's, how many writes that
// takes, and how fast it goes. The floor is the same writes, sent raw.
package handover

import (
	"context"
	"fmt"
	"time"

	"github.com/clusterring/clusterring/tools/load/internal/result"
	"github.com/clusterring/clusterring/tools/load/internal/run"
)

// sizes are how many children an owner has.
var sizes = []int{0, 3, 30}

func medianRow(children int) string { return fmt.Sprintf("handover-nobodys-%d", children) }
func lateRow(children int) string   { return fmt.Sprintf("handover-nobodys-late-%d", children) }
func writesRow(children int) string { return fmt.Sprintf("handover-writes-%d", children) }
func rateRow(children int) string   { return fmt.Sprintf("handover-rate-%d", children) }

// Measurements returns what this package measures.
func Measurements() []run.Measurement {
	var ids []string
	for _, n := range sizes {
		ids = append(ids, medianRow(n), lateRow(n), writesRow(n), rateRow(n))
	}

	return []run.Measurement{{
		Name: "handover", IDs: ids,
		Budget: map[run.Scale]time.Duration{run.Small: 60 * time.Second, run.Full: 240 * time.Second}, Run: all,
	}}
}

// moved is what one join has done to owners.
type moved struct {
	owners int
	// median and late are how long owners were nobody's, in seconds: the median and the 99th percentile.
	median, late float64
	// writes is how many there were per owner, rate how many owners came to their new shard per second.
	writes, rate float64
}

func (m moved) String() string {
	return fmt.Sprintf("%d owners, nobody's for %.3f s (99%%: %.3f s), %.1f writes each, %.0f/s", m.owners, m.median, m.late, m.writes, m.rate)
}

func all(ctx context.Context, b *run.Bench) (rows []result.Row, series []result.Series, err error) {
	for i, children := range sizes {
		if !b.Wants(medianRow(children), lateRow(children), writesRow(children), rateRow(children)) {
			continue
		}

		values, floors, err := withChildren(ctx, b.Share(len(sizes)-i).More(i == len(sizes)-1), children)
		if err != nil {
			return nil, nil, fmt.Errorf("%d children: %w", children, err)
		}

		rows = append(rows, rowsOf(children, values, floors)...)
	}

	return rows, nil, nil
}

func rowsOf(children int, values, floors []moved) []result.Row {
	of := result.Column[moved]
	with := fmt.Sprintf("an owner of %d children", children)

	return []result.Row{
		{
			ID: medianRow(children), Title: "time for which " + with + " is nobody's in a planned move, median", Unit: "s",
			Values: of(values, func(m moved) float64 { return m.median }), Judge: result.JudgeValue,
			Notes: []string{"From the write by which its shard gives it up, or is seen to have, to the one by which it comes to the next one. What controls nothing is never nobody's."},
		},
		{
			ID: lateRow(children), Title: "the same, 99th percentile", Unit: "s",
			Values: of(values, func(m moved) float64 { return m.late }), Judge: result.JudgeValue,
		},
		{
			ID: writesRow(children), Title: "writes to move " + with, Unit: "writes",
			Values: of(values, func(m moved) float64 { return m.writes }), FloorTitle: "one to ask for it, one to give it up, one for each child, and one to assign it",
			Floor: of(floors, func(m moved) float64 { return m.writes }), Judge: result.JudgeRatio,
		},
		{
			ID: rateRow(children), Title: fmt.Sprintf("join: owners of %d children that came to the new shard per second", children), Unit: "owners/s",
			Values: of(values, func(m moved) float64 { return m.rate }), FloorTitle: "as many raw PATCHes, same concurrency",
			Floor: of(floors, func(m moved) float64 { return m.rate }), Judge: result.JudgeRatio,
			Target: result.Target{Bound: result.AtLeast, Value: 0.85, Unit: "×"},
		},
	}
}

// quantiles returns the median and the 99th percentile; 0 if there is nothing.
func quantiles(times []time.Duration) (median, late float64) {
	if len(times) == 0 {
		return 0, 0
	}

	return times[len(times)/2].Seconds(), times[min(len(times)-1, len(times)*99/100)].Seconds()
}
