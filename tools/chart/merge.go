package chart

import (
	"fmt"
	"slices"
	"strings"
)

// merge returns a template of the base and its variants, as diff --ifdef does of two files.
func merge(base []string, variants []variant) (string, error) {
	added, lacks := make([]string, len(base)+1), make([]string, len(base)) // lacks: the condition on which a line is there

	for _, v := range variants {
		adds, missing := diff(base, v.lines)
		for i, lines := range adds {
			added[i] += guarded(v.condition, lines)
		}

		for i := range missing {
			if missing[i] && lacks[i] != "" {
				return "", fmt.Errorf("%s and %s change the same line: %s", strings.TrimPrefix(lacks[i], "not "), v.condition, base[i])
			}

			if missing[i] {
				lacks[i] = "not " + v.condition
			}
		}
	}

	var (
		b    strings.Builder
		open string // the condition whose lines are pending
		held string // these lines
	)

	flush := func() {
		b.WriteString(guarded(open, held))

		open, held = "", ""
	}

	for i, line := range base {
		if added[i] != "" || lacks[i] != open {
			flush()
			b.WriteString(added[i])
		}

		if lacks[i] == "" {
			b.WriteString(line)
			continue
		}

		open, held = lacks[i], held+line
	}

	flush()
	b.WriteString(added[len(base)])

	return b.String(), nil
}

// diff returns the lines that a variant has before each line of the base and at its end, and which lines of the base the variant lacks.
func diff(base, variant []string) (added []string, lacks []bool) {
	// longest[i][j] is the length of the longest common subsequence of base[i:] and variant[j:].
	longest := make([][]int, len(base)+1)
	for i := range longest {
		longest[i] = make([]int, len(variant)+1)
	}

	for i, line := range slices.Backward(base) {
		for j, other := range slices.Backward(variant) {
			if line == other {
				longest[i][j] = longest[i+1][j+1] + 1
			} else {
				longest[i][j] = max(longest[i+1][j], longest[i][j+1])
			}
		}
	}

	added, lacks = make([]string, len(base)+1), make([]bool, len(base))
	i, j := 0, 0

	for i < len(base) || j < len(variant) {
		switch {
		case i < len(base) && j < len(variant) && base[i] == variant[j]:
			i, j = i+1, j+1
		case i < len(base) && (j == len(variant) || longest[i+1][j] >= longest[i][j+1]):
			lacks[i] = true
			i++
		default:
			added[i] += variant[j]
			j++
		}
	}

	return added, lacks
}
