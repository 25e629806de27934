package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gotest.tools/v3/golden"
)

// ring has the available shards "here" and "there". The key of every object belongs to "here". The shard "gone" is not
// available.
type ring struct{}

func (ring) Works(shard string) bool { return shard == "here" || shard == "there" }

func (a Action) describe() string {
	s := string(a.Verb)
	if a.To != "" {
		s += " to " + a.To
	}

	if a.ChildrenFirst {
		s += " after its children"
	}

	if a.TakenFrom != "" {
		s += " once " + a.TakenFrom + " is known to be gone"
	}

	return s
}

func (o Object) describe() string {
	var b strings.Builder

	fmt.Fprintf(&b, "shard=%-6s drain=%-4s ", orDash(o.Shard), yes(o.Draining))

	if o.Belongs {
		fmt.Fprintf(&b, "belongs to %-6s", orDash(o.Desired))
	} else {
		fmt.Fprintf(&b, "%-17s", "not of the ring")
	}

	if o.Controlled {
		owner := "owner absent"
		if o.Owner.Exists {
			owner = fmt.Sprintf("owner shard=%s drain=%s", orDash(o.Owner.Shard), yes(o.Owner.Draining))
			if o.Owner.Belongs != o.Belongs {
				owner += " stays"
			}
		}

		fmt.Fprintf(&b, " %-34s", owner)
	}

	return b.String()
}

func yes(b bool) string {
	if b {
		return "yes"
	}

	return "no"
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}

	return s
}

// mainObjects returns every combination of relevant properties of a main object.
func mainObjects() []Object {
	var all []Object

	for _, belongs := range []bool{true, false} {
		for _, desired := range []string{"here", ""} {
			if !belongs && desired != "" {
				continue
			}

			for _, shard := range []string{"", "here", "there", "gone"} {
				for _, draining := range []bool{false, true} {
					all = append(all, Object{
						Shard: shard, Labelled: shard != "", Draining: draining, Belongs: belongs, Desired: desired,
					})
				}
			}
		}
	}

	return all
}

// parents returns the same for a resource that has controlled ones.
func parents() []Object {
	all := mainObjects()
	for i := range all {
		all[i].Parent = true
	}

	return all
}

// controlledObjects returns every combination of relevant properties of a controlled object.
func controlledObjects() []Object {
	owners := []Owner{{}}

	for _, shard := range []string{"", "here", "there", "gone"} {
		for _, draining := range []bool{false, true} {
			owners = append(owners, Owner{Exists: true, Shard: shard, Draining: draining})
		}
	}

	var all []Object

	for _, o := range mainObjects() {
		for _, owner := range owners {
			o.Controlled, o.Owner = true, owner
			o.Owner.Belongs = owner.Exists && o.Belongs
			all = append(all, o)

			if owner.Exists && !o.Belongs { // only the resource of this object leaves the ring
				o.Owner.Belongs = true
				all = append(all, o)
			}
		}
	}

	return all
}

func TestDecide(t *testing.T) {
	for file, objects := range map[string][]Object{
		"main.txt": mainObjects(), "parents.txt": parents(), "controlled.txt": controlledObjects(),
	} {
		t.Run(file, func(t *testing.T) {
			var got strings.Builder

			fmt.Fprintln(&got, "# available: here, there; not available: gone")

			for _, o := range objects {
				fmt.Fprintf(&got, "%s → %s\n", o.describe(), Decide(ring{}, o).describe())
			}

			golden.Assert(t, got.String(), file)
		})
	}
}

// These properties must hold for every decision, whatever the table contains.
func TestDecideNeverEndangers(t *testing.T) {
	for _, o := range slices.Concat(mainObjects(), parents(), controlledObjects()) {
		a := Decide(ring{}, o)
		loses := o.Shard != "" && (a.Verb == Release || a.Verb == Assign && a.To != o.Shard)

		if a.To != "" {
			require.True(t, ring{}.Works(a.To), "given to %q, which is not available: %s", a.To, o.describe())
			require.False(t, a.Verb == Drain && o.Parent, "its children have to move before it does: %s", o.describe())
		}

		if loses && !(ring{}).Works(o.Shard) && o.Belongs {
			require.Equal(t, o.Shard, a.TakenFrom, "taken from a shard without confirmation: %s", o.describe())
		}

		if loses && !o.Controlled {
			require.False(t, ring{}.Works(o.Shard), "taken from a live shard that was not asked: %s", o.describe())
		}

		if loses && o.Controlled && (ring{}).Works(o.Shard) && o.Owner.Exists && o.Owner.Belongs == o.Belongs {
			require.NotEqual(t, o.Shard, o.Owner.Shard, "taken from the shard that has the owner: %s", o.describe())
			require.False(t, o.Owner.Draining && (ring{}).Works(o.Owner.Shard), "moved while the owner is asked for: %s",
				o.describe())
		}
	}
}
