package family

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// With children before the owner, and a barrier, nothing is created twice, and nothing is missing.
func TestNothingInExcess(t *testing.T) {
	for name, sc := range map[string]Scope{
		"moves":             {Moves: 2},
		"a death":           {Deaths: 1},
		"moves and a death": {Moves: 2, Deaths: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			found := Explore(sc)
			if v := found.Violation; v != nil {
				require.Fail(t, string(v.Property), strings.Join(v.Trace, "\n"))
			}

			t.Logf("%d states", found.States)
		})
	}
}

// Every mutation results in excess children.
func TestMutations(t *testing.T) {
	for _, m := range []Mutation{OwnerFirst, NoBarrier, NoDrain, BeginsEarly, Unlabelled} {
		t.Run(string(m), func(t *testing.T) {
			t.Parallel()

			found := Explore(Scope{Moves: 1, Mutation: m})
			require.NotNil(t, found.Violation, "nobody notices in %d states", found.States)
			require.Equal(t, NoExcess, found.Violation.Property)
			t.Logf("%d steps:\n%s", len(found.Violation.Trace), strings.Join(found.Violation.Trace, "\n"))
		})
	}
}
