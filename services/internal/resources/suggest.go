package resources

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// NotServedError says that the API server does not serve a resource in any version. It is one that [meta.IsNoMatchError] knows.
type NotServedError struct {
	schema.GroupResource
	// Suggestion is a resource that is served and may have been meant; empty if there is none.
	Suggestion string
}

// Error says it to people.
func (e *NotServedError) Error() string {
	said := "the API server does not serve " + e.String()
	if e.Suggestion != "" {
		said += "; did you mean " + e.Suggestion + "?"
	}

	return said
}

// Unwrap returns the error that API machinery has for it.
func (e *NotServedError) Unwrap() error {
	return &meta.NoResourceMatchError{PartialResource: e.WithVersion("")}
}

// typos is how many letters may be wrong in a name that is still taken for a typo.
const typos = 2

// suggest returns what may have been meant by a resource that is not served: what has the name as its singular, its short name
// or its kind, what is written nearly so, or what is called so in other groups; empty if there is none such.
func (s *snapshot) suggest(gr schema.GroupResource) string {
	if g := s.groups[gr.Group]; g != nil {
		if name, ok := g.aliases[gr.Resource]; ok {
			return schema.GroupResource{Group: gr.Group, Resource: name}.String()
		}

		best, least := "", min(typos, len(gr.Resource)/3)+1

		for _, name := range slices.Sorted(maps.Keys(g.resources)) {
			if d := distance(gr.Resource, name); d < least {
				best, least = name, d
			}
		}

		if best != "" {
			return schema.GroupResource{Group: gr.Group, Resource: best}.String()
		}
	}

	for _, other := range slices.Sorted(maps.Keys(s.groups)) {
		g := s.groups[other]
		if _, ok := g.resources[gr.Resource]; ok {
			return schema.GroupResource{Group: other, Resource: gr.Resource}.String()
		}
	}

	return ""
}

// distance returns how many bytes have to be inserted, deleted or replaced to make b of a.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}

	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1

		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}

			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, row[j+1]+1)
		}
	}

	return row[len(b)]
}
