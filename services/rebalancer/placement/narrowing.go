package placement

import (
	"maps"
	"slices"
	"strings"
)

const (
	// fewLeftOut is up to how many namespaces are left out of a watch by name; fewCovered up to how many are watched one by one.
	fewLeftOut, fewCovered = 32, 4
)

// Narrowing says which namespaces need not be watched for objects without a shard: a core resource has many objects, and many
// changes, that are no business of a ring. The zero value leaves out none.
type Narrowing struct {
	// Except are the namespaces to leave out, sorted. Each of them is one that the ring does not cover.
	Except []string
	// Only are the namespaces to watch, sorted, if Single: all that the ring covers.
	Only   []string
	Single bool
}

// Narrow returns how to watch the namespaces that a ring covers, of all that there are by name. What was done before is kept while it is
// right, for a change costs a list.
func Narrow(before Narrowing, covered map[string]bool) Narrowing {
	var only, except []string

	for _, name := range slices.Sorted(maps.Keys(covered)) {
		if covered[name] {
			only = append(only, name)
		} else {
			except = append(except, name)
		}
	}

	right := !slices.ContainsFunc(before.Except, func(name string) bool { return covered[name] })

	switch {
	case len(only) <= fewCovered && len(except) > len(only):
		return Narrowing{Single: true, Only: only}
	case !before.Single && len(before.Except) > 0 && right:
		return before
	}

	return Narrowing{Except: except[:min(len(except), fewLeftOut)]}
}

// Equal reports whether both narrow down to the same.
func (n Narrowing) Equal(o Narrowing) bool {
	return n.Single == o.Single && slices.Equal(n.Only, o.Only) && slices.Equal(n.Except, o.Except)
}

// Fields returns the field selector that leaves namespaces out.
func (n Narrowing) Fields() string {
	terms := make([]string, 0, len(n.Except))
	for _, name := range n.Except {
		terms = append(terms, "metadata.namespace!="+name)
	}

	return strings.Join(terms, ",")
}
