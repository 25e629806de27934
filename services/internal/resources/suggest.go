package resources

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// NotServedError means that the API server does not serve a resource in any version, or not in a way that permits sharding.
// [meta.IsNoMatchError] is true for it.
type NotServedError struct {
	schema.GroupResource
	// Lacks names the verbs that sharding needs and that the API server does not serve for the resource, separated by commas. It is empty
	// if the resource is not served at all.
	Lacks string
	// Suggestion is a served resource that may have been meant; empty if there is none.
	Suggestion string
}

// Error implements error.
func (e *NotServedError) Error() string {
	if e.Lacks != "" {
		return e.String() + " cannot be sharded, because the API server serves it without the verbs " + e.Lacks
	}

	said := "the API server does not serve " + e.String()
	if e.Suggestion != "" {
		said += "; did you mean " + e.Suggestion + "?"
	}

	return said
}

// Unwrap returns the corresponding error of API machinery.
func (e *NotServedError) Unwrap() error {
	return &meta.NoResourceMatchError{PartialResource: e.WithVersion("")}
}

// typos is how many letters may differ in a name that still counts as a typo.
const typos = 2

// suggest returns what may have been meant by a resource that is not served: a resource with this name as its singular, short
// name, or kind; one with a similar name; or one with the same name in another group. It returns "" if there is none.
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

// distance returns how many bytes must be inserted, deleted, or replaced to turn a into b.
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
