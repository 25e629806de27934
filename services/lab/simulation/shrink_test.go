package simulation

import (
	"slices"
	"strings"
)

// Shrink removes parts of a history one after another, as long as it still fails without them. fails runs a history and
// reports whether it fails in the same way.
func Shrink(h History, fails func(h History) bool) History {
	for size := max(1, len(h.Steps)/2); size > 0; size /= 2 {
		for at := 0; at < len(h.Steps); {
			without := h
			without.Steps = slices.Delete(slices.Clone(h.Steps), at, min(at+size, len(h.Steps)))

			if fails(without) {
				h = without
			} else {
				at += size
			}
		}
	}

	for _, simpler := range []func(h *History){
		func(h *History) { h.Crowd = false },
		func(h *History) { h.Page = 0 },
		func(h *History) { h.Streaming = true },
	} {
		without := h
		if simpler(&without); fails(without) {
			h = without
		}
	}

	return h
}

// Properties returns the violated properties, without repetition and in order.
func (r Result) Properties() []string {
	var all []string

	for _, v := range r.Violations {
		property, _, _ := strings.Cut(v, ":")
		all = append(all, property)
	}

	slices.Sort(all)

	return slices.Compact(all)
}
