// Package figure writes numbers as people read them: with as many digits as say something, with commas between thousands, with
// their unit.
package figure

import (
	"math"
	"strconv"
	"strings"
)

// Number returns a number with about three digits: all of an integer, "1.05", "12.3", "1,234". What is no number is "–", what is
// infinite "∞".
func Number(v float64) string {
	switch magnitude := math.Abs(v); {
	case math.IsNaN(v):
		return none
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

// Exact returns a finite number with all its digits: that of a target, of which none is left out.
func Exact(v float64) string { return Fixed(v, -1) }

// Fixed returns a finite number with so many decimals; fewer than none is as many as it has.
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

// none is what is no number.
const none = "–"

// With returns a number, written already, with its unit: "12.3 µs", but "1.05×" and "10%". Without a unit it is the number, and
// what is no number has no unit.
func With(number, unit string) string {
	switch {
	case number == none:
		return number
	case unit == "", unit == "×", unit == "%":
		return number + unit
	default:
		return number + " " + unit
	}
}
