// Package result defines the results of a run: rows with a value, a floor, and a target, and charts. It formats their
// numbers for people: with significant digits only, commas between thousands, and units.
package result

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// JudgeValue is the value of [Row.Judge] where the target bounds the value itself.
const JudgeValue = "value"

// The values of [Target.Bound].
const (
	// AtMost means that the result must not exceed the target.
	AtMost = "≤"
	// AtLeast means that the result must not fall below the target.
	AtLeast = "≥"
)

// Report contains the results of a run.
type Report struct {
	// Began is the start of the run, Took its duration in seconds.
	Began time.Time
	Took  float64
	// Scale is small, full or million, Version that of the binaries measured.
	Scale, Version string
	// Machine describes the machine of the run.
	Machine string
	Results
}

// Results are what measurements have found.
type Results struct {
	Rows   []Row
	Charts []Chart
}

// Row is one measurement with its floor and its target.
type Row struct {
	// ID identifies the row on command lines: letters, digits, and dashes. Title describes it for people.
	ID, Title string
	// Unit is that of Values and Floor, for example "µs" or "objects/s"; empty for plain numbers.
	Unit string
	// Values holds one measurement per round.
	Values []float64
	// FloorTitle says what the floor is. Floor holds that of the same rounds, and is empty where there is none.
	FloorTitle string
	Floor      []float64
	// Judge is JudgeValue if Target bounds the value although there is a floor. Else it bounds value / floor of the same
	// round.
	Judge  string
	Target Target
	// PriorArt is the result of the prior art in the same measurement; empty if it was not measured.
	PriorArt string
	// Notes explain the figures to readers.
	Notes []string
}

// Target is the bound that a result should keep. The zero value is no target.
type Target struct {
	// Bound is AtMost or AtLeast; empty for no target.
	Bound string
	// Value is the inclusive limit, in the unit of the row, or as a ratio.
	Value float64
}

// Max returns the target that a result does not exceed a value.
func Max(value float64) Target { return Target{Bound: AtMost, Value: value} }

// Min returns the target that a result does not fall below a value.
func Min(value float64) Target { return Target{Bound: AtLeast, Value: value} }

// Chart is lines in a plot.
type Chart struct {
	// ID names the chart, and its file. Title says to a person what it shows. X and Y are what the axes show.
	ID, Title, X, Y string
	Lines           []Line
	// Logarithmic is true if X grows by factors. Then Y is logarithmic, too, if it differs by large ones.
	Logarithmic bool
	// Stacked draws each line above the one before, and fills what is below it.
	Stacked bool
	// Limit is a value that should not be exceeded; 0 for none. Marks are places at which something happened.
	Limit float64
	Marks []float64
}

// Line is a line of a chart. One without points is not drawn.
type Line struct {
	Name   string
	Dashed bool
	Points []XY
}

// XY is a point. A hollow one does not count.
type XY struct {
	X, Y   float64
	Hollow bool
}

// Spread returns the median and the range of values, and three times NaN for none. It leaves values as they are.
func Spread(values []float64) (median, low, high float64) {
	if len(values) == 0 {
		return math.NaN(), math.NaN(), math.NaN()
	}

	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2

	median = sorted[middle]
	if len(sorted)%2 == 0 {
		median = (sorted[middle-1] + sorted[middle]) / 2
	}

	return median, sorted[0], sorted[len(sorted)-1]
}

// Column returns one figure of each element of a list.
func Column[T any](list []T, figure func(T) float64) []float64 {
	figures := make([]float64, len(list))
	for i, element := range list {
		figures[i] = figure(element)
	}

	return figures
}

// Ratios returns value / floor, round by round. Where both are zero it is 1, where only the floor is, it is infinite.
// Rounds without a floor are left out.
func Ratios(values, floor []float64) []float64 {
	ratios := make([]float64, 0, len(values))
	for i := range min(len(values), len(floor)) {
		if values[i] == 0 && floor[i] == 0 {
			ratios = append(ratios, 1)
			continue
		}

		ratios = append(ratios, values[i]/floor[i])
	}

	return ratios
}

// ByRatio reports whether the row is judged by value / floor.
func (r *Row) ByRatio() bool { return len(r.Floor) > 0 && r.Judge != JudgeValue }

// Result returns the median and the range of the ratios or values that the row is judged by, NaN if there are none.
func (r *Row) Result() (median, low, high float64) {
	if r.ByRatio() {
		return Spread(Ratios(r.Values, r.Floor))
	}

	return Spread(r.Values)
}

// Met reports whether the median keeps the target. It is true for a row without a target.
func (r *Row) Met() bool {
	median, _, _ := r.Result()
	switch r.Target.Bound {
	case AtMost:
		return median <= r.Target.Value
	case AtLeast:
		return median >= r.Target.Value
	default:
		return true
	}
}

// Check returns an error if a row has no value, is inconsistent, or has a value that JSON cannot encode.
func (r *Row) Check() error {
	finite := !slices.ContainsFunc(slices.Concat(r.Values, r.Floor), func(v float64) bool {
		return math.IsNaN(v) || math.IsInf(v, 0)
	})
	switch {
	case len(r.Values) == 0:
		return fmt.Errorf("row %q has no value", r.ID)
	case !finite:
		return fmt.Errorf("row %q has a value that is not finite: %v, floor %v", r.ID, r.Values, r.Floor)
	case len(r.Floor) > 0 && len(r.Floor) != len(r.Values):
		return fmt.Errorf("row %q has %d values but %d of its floor", r.ID, len(r.Values), len(r.Floor))
	default:
		return nil
	}
}

// Number formats a number with about three digits ("1.05", "12.3"), and integers with all their digits ("1,234").
// Infinity is "∞".
func Number(v float64) string {
	switch magnitude := math.Abs(v); {
	case math.IsInf(v, 0):
		return "∞"
	case magnitude == math.Trunc(magnitude) || magnitude >= 99.95:
		return Fixed(v, 0)
	case magnitude >= 9.995:
		return Fixed(v, 1)
	case magnitude >= 0.0995:
		return Fixed(v, 2)
	default:
		return strconv.FormatFloat(v, 'g', 2, 64)
	}
}

// Fixed formats a finite number with the given number of decimals; -1 means all of them.
func Fixed(v float64, decimals int) string {
	text := strconv.FormatFloat(math.Abs(v), 'f', decimals, 64)

	whole, fraction, _ := strings.Cut(text, ".")
	for i := len(whole) - 3; i > 0; i -= 3 {
		whole = whole[:i] + "," + whole[i:]
	}

	if fraction != "" {
		whole += "." + fraction
	}

	if v < 0 {
		return "-" + whole
	}

	return whole
}

// WithUnit appends the unit to a formatted number: "12.3 µs", "1.05×", "10%".
func WithUnit(number, unit string) string {
	switch unit {
	case "", "×", "%":
		return number + unit
	default:
		return number + " " + unit
	}
}
