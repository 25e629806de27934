package report

import (
	"fmt"
	"io"
	"math"
	"text/tabwriter"

	"github.com/clusterring/clusterring/tools/load/internal/figure"
	"github.com/clusterring/clusterring/tools/load/internal/result"
)

// ratio is the unit of ratios.
const ratio = "×"

// nothing stands for an empty cell.
const nothing = "–"

// line is a formatted row.
type line struct {
	title, floorTitle, priorArt, target, met string
	floorMedian                              string // with unit; empty without floor
	median, spread                           string // of what is judged; the spread is empty where there is none
	measured                                 string // the median that was measured, where a ratio is judged
}

func lineOf(r *result.Row) line {
	unit := r.Unit
	if r.Judge == result.JudgeRatio {
		unit = ratio
	}

	median, low, high := r.Result()

	l := line{
		title: r.Title, floorTitle: r.FloorTitle, priorArt: orNothing(r.PriorArt), target: targetOf(r, unit), met: metOf(r),
		median: figure.With(closeTo(median, unit, r), unit),
	}
	if low != high {
		l.spread = number(low, unit) + " to " + number(high, unit)
	}

	if len(r.Floor) > 0 {
		floor, _, _ := result.Spread(r.Floor)
		l.floorMedian = figure.With(number(floor, r.Unit), r.Unit)
	}

	if r.Judge == result.JudgeRatio && len(r.Values) > 0 {
		value, _, _ := result.Spread(r.Values)
		l.measured = figure.With(number(value, r.Unit), r.Unit)
	}

	return l
}

// floor is the cell of the floor: what it is, and its median.
func (l line) floor() string {
	switch {
	case l.floorMedian == "":
		return orNothing(l.floorTitle)
	case l.floorTitle == "":
		return l.floorMedian
	default:
		return l.floorTitle + ": " + l.floorMedian
	}
}

// result is the cell of the result.
func (l line) result() string {
	text := l.median
	if l.spread != "" {
		text += " (" + l.spread + ")"
	}

	if l.measured != "" {
		text += ", " + l.measured
	}

	return text
}

// number formats ratios with two decimals, unless they are large.
func number(v float64, unit string) string {
	const large = 10
	if unit == ratio && math.Abs(v) < large {
		return figure.Fixed(v, 2)
	}

	return figure.Number(v)
}

// closeTo formats a median with enough digits to distinguish it from a missed target.
func closeTo(median float64, unit string, r *result.Row) string {
	text := number(median, unit)
	if r.Met() || math.IsNaN(median) || math.IsInf(median, 0) {
		return text
	}

	for digits := 2; text == number(r.Target.Value, unit) && digits < 10; digits++ {
		if precise := figure.Fixed(median, digits); precise != figure.Fixed(r.Target.Value, digits) {
			text = precise
		}
	}

	return text
}

func targetOf(r *result.Row, unit string) string {
	if r.Target.Unit != "" {
		unit = r.Target.Unit
	}

	value := figure.With(figure.Exact(r.Target.Value), unit)
	switch r.Target.Bound {
	case result.AtMost:
		return "≤ " + value
	case result.AtLeast:
		return "≥ " + value
	default:
		return nothing
	}
}

func metOf(r *result.Row) string {
	switch {
	case r.Target.Bound == "":
		return nothing
	case r.Met():
		return "yes"
	default:
		return "**no**"
	}
}

func orNothing(text string) string {
	if text == "" {
		return nothing
	}

	return text
}

// Print writes the table for a terminal, with one line per row. Lines of missed targets begin with "!". Errors are those of out.
func Print(out io.Writer, r *result.Report) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, " \tMEASUREMENT\tRESULT\tRANGE\tTARGET\tPRIOR ART\tMEASURED\tFLOOR")

	for i := range r.Rows {
		row := &r.Rows[i]
		l := lineOf(row)

		mark := " "
		if !row.Met() {
			mark = "!"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", mark, l.title, l.median, orNothing(l.spread), l.target, l.priorArt, orNothing(l.measured),
			orNothing(l.floorMedian))
	}

	if err := w.Flush(); err != nil {
		return fmt.Errorf("print the table of results: %w", err)
	}

	return nil
}
