package run

import (
	"errors"
	"fmt"
	"slices"

	"github.com/clusterring/clusterring/tools/load/internal/result"
)

// found is what a measurement has reported.
type found struct {
	rows   []result.Row
	series []result.Series
	err    error
}

// drawn returns the series that have points.
func (f *found) drawn() []result.Series {
	return slices.DeleteFunc(slices.Clone(f.series), func(s result.Series) bool { return len(s.Points) == 0 })
}

// Figure is a row, and what it shows of a round.
type Figure[T any] struct {
	Row result.Row
	Of  func(T) float64
}

// Itself is the figure of rounds that are measured in one number.
func Itself(v float64) float64 { return v }

// IDs returns the ids of figures.
func IDs[T any](figures []Figure[T]) []string {
	ids := make([]string, len(figures))
	for i, f := range figures {
		ids[i] = f.Row.ID
	}

	return ids
}

// Report reports rows about rounds and, possibly, their floors.
func Report[T any](b *Bench, values, floors []T, figures ...Figure[T]) {
	for _, f := range figures {
		row := f.Row
		row.Values = result.Column(values, f.Of)

		if row.FloorTitle != "" && len(floors) > 0 {
			row.Floor = result.Column(floors, f.Of)
		}
		b.Report(row)
	}
}

// Report reports rows. It drops those that are not wanted, and completes the others: a row with a floor is judged by the ratio, unless it
// says otherwise, and the unit of the target follows from that.
func (b *Bench) Report(rows ...result.Row) {
	for _, row := range rows {
		if !b.Wants(row.ID) {
			continue
		}

		if row.Judge == "" {
			row.Judge = result.JudgeValue
			if len(row.Floor) > 0 {
				row.Judge = result.JudgeRatio
			}
		}

		if row.Target.Bound != "" {
			row.Target.Unit = row.Unit
			if row.Judge == result.JudgeRatio {
				row.Target.Unit = "×"
			}
		}

		err := row.Check()
		if !slices.Contains(b.measurement.ids(), row.ID) {
			err = fmt.Errorf("row %q is not announced", row.ID)
		}

		if err != nil {
			b.found.err = errors.Join(b.found.err, err)
			continue
		}

		median, low, high := row.Result()
		b.Progress("%s: %.3g (%.3g to %.3g)", row.ID, median, low, high)
		b.found.rows = append(b.found.rows, row)
	}
}

// Point adds values, and possibly their floors, to the place x of a series of the measurement, if that is wanted.
func (b *Bench) Point(series string, x int, values, floors []float64) {
	at := slices.IndexFunc(b.found.series, func(s result.Series) bool { return s.ID == series })
	if at < 0 {
		b.found.err = errors.Join(b.found.err, fmt.Errorf("series %q is not announced", series))
		return
	}

	if !b.Wants(series) {
		return
	}

	s := &b.found.series[at]

	place := slices.IndexFunc(s.Points, func(p result.Point) bool { return p.X == float64(x) })
	if place < 0 {
		place = len(s.Points)
		s.Points = append(s.Points, result.Point{X: float64(x)})
	}

	p := &s.Points[place]
	p.Values, p.Floor = append(p.Values, values...), append(p.Floor, floors...)
}
