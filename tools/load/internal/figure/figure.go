// Package figure formats numbers for people: with significant digits only, commas between thousands, and units.
package figure

import (
	"math"
	"strconv"
	"strings"
)

// Number formats a number with about three digits ("1.05", "12.3"), and integers with all their digits ("1,234"). NaN is "–", infinity
// is "∞".
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

// Exact formats a finite number with all its digits.
func Exact(v float64) string { return Fixed(v, -1) }

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

// none stands for NaN.
const none = "–"

// With appends the unit to a formatted number: "12.3 µs", "1.05×", "10%". It appends nothing to NaN.
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
