package placement

import (
	"maps"
	"slices"
	"strings"
)

const (
	// fewLeftOut is the number of namespaces up to which a watch excludes them by name. fewCovered is the number of
	// namespaces up to which they are watched one by one.
	fewLeftOut, fewCovered = 32, 4
)

// Narrowing describes which namespaces do not have to be watched for objects without a shard: a core resource has many
// objects and changes that do not concern a ring. The zero value excludes no namespace.
type Narrowing struct {
	// Except are the namespaces to exclude, sorted. The ring covers none of them.
	Except []string
	// Only are the namespaces to watch if Single is true, sorted: all that the ring covers.
	Only   []string
	Single bool
}

// Narrow returns how to watch the namespaces that a ring covers. covered contains all existing namespaces by name. The
// result of an earlier call is kept while it is correct, because a change costs a list.
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

// Equal reports whether both watch the same namespaces in the same way.
func (n Narrowing) Equal(o Narrowing) bool {
	return n.Single == o.Single && slices.Equal(n.Only, o.Only) && slices.Equal(n.Except, o.Except)
}

// Fields returns the field selector that excludes namespaces.
func (n Narrowing) Fields() string {
	terms := make([]string, 0, len(n.Except))
	for _, name := range n.Except {
		terms = append(terms, "metadata.namespace!="+name)
	}

	return strings.Join(terms, ",")
}
