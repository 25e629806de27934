package shard

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

var website = objectKey{
	GroupKind:      schema.GroupKind{Group: "example.com", Kind: "Website"},
	NamespacedName: types.NamespacedName{Namespace: "default", Name: "a"},
}

func mine(version string) view     { return view{version: version, owned: true} }
func draining(version string) view { return view{version: version, owned: true, draining: true} }
func other(version string) view    { return view{version: version} }

// inside enters the object and judges a view of it.
func inside(g *guard, v view) verdict {
	g.enter(website)

	return g.judge(website, v)
}

// once is a complete visit. It returns the verdict and what to acknowledge.
func once(g *guard, v view) (verdict, string) {
	may := inside(g, v)
	asked, _ := g.leave(website)

	return may, asked.version
}

func TestGuardLetsTheLastOneAcknowledge(t *testing.T) {
	g := newGuard()
	require.Equal(t, run, inside(g, mine("7")), "the first worker")
	require.Equal(t, run, inside(g, mine("7")), "the second worker")

	may, version := once(g, draining("8"))
	require.Equal(t, drained, may)
	require.Empty(t, version, "two are still inside")

	may, version = once(g, mine("7"))
	require.Equal(t, unclear, may, "nobody starts from a cache that is behind")
	require.Empty(t, version)

	_, acknowledge := g.leave(website)
	require.False(t, acknowledge, "one is still inside")
	asked, acknowledge := g.leave(website)
	require.True(t, acknowledge)
	require.Equal(t, drain{version: "8"}, asked)
}

func TestGuardForgetsADrainThatIsWithdrawn(t *testing.T) {
	g := newGuard()
	require.Equal(t, run, inside(g, mine("7")), "the first worker")
	once(g, draining("8"))
	may, _ := once(g, mine("9"))
	require.Equal(t, run, may)

	_, acknowledge := g.leave(website)
	require.False(t, acknowledge)
	require.Empty(t, g.objects)
}

func TestGuardAcknowledgesOnceAtATime(t *testing.T) {
	g := newGuard()
	_, version := once(g, draining("8"))
	require.Equal(t, "8", version)

	may, version := once(g, draining("8"))
	require.Equal(t, drained, may)
	require.Empty(t, version, "somebody is at it")

	may, version = once(g, mine("9"))
	require.Equal(t, unclear, may, "withdrawn, but the patch may be on its way")
	require.Empty(t, version)

	may, _ = once(g, view{})
	require.Equal(t, unclear, may, "deleted, or given up")

	g.settle(website, outcome{})
	may, _ = once(g, mine("9"))
	require.Equal(t, run, may)
	require.Empty(t, g.objects)
}

func TestGuardRemembersABoundedNumberOfDepartures(t *testing.T) {
	g := newGuard()
	key := func(i int) objectKey {
		k := website
		k.Name = fmt.Sprint("website-", i)

		return k
	}

	const extra = 10
	for i := range rememberedAcknowledgements + extra {
		g.enter(key(i))
		g.judge(key(i), draining("8"))
		_, acknowledge := g.leave(key(i))
		require.True(t, acknowledge)
		g.settle(key(i), outcome{version: "9"})
	}

	require.Len(t, g.objects, rememberedAcknowledgements)
	require.NotContains(t, g.objects, key(extra-1))
	require.Contains(t, g.objects, key(extra))
}

// Nobody works on an object while nobody knows whether it was released.
func TestGuardAfterALostAnswer(t *testing.T) {
	g := newGuard()
	_, version := once(g, draining("8"))
	require.Equal(t, "8", version)
	g.settle(website, outcome{unknown: true})

	for _, v := range []view{mine("7"), draining("8"), mine("12"), other("9"), {}} {
		require.Equal(t, unclear, inside(g, v), "%+v", v)
		asked, acknowledge := g.leave(website)
		require.True(t, acknowledge, "the last one to leave asks again")
		require.True(t, asked.unknown)
		g.settle(website, outcome{unknown: true})
	}

	g.enter(website)
	g.leave(website)
	g.settle(website, outcome{version: "9"})

	may, _ := once(g, mine("7"))
	require.Equal(t, unclear, may, "another cache is behind")
	may, _ = once(g, view{})
	require.Equal(t, gone, may)
}

// An object that is absent while it is to be released may have been released, or deleted.
func TestGuardAsksForAnAbsentObjectThatIsDraining(t *testing.T) {
	g := newGuard()
	require.Equal(t, run, inside(g, mine("7")))
	once(g, draining("8"))

	may, _ := once(g, view{})
	require.Equal(t, unclear, may)

	asked, _ := g.leave(website)
	require.Equal(t, "8", asked.version)
	g.settle(website, outcome{deleted: true})

	may, _ = once(g, view{})
	require.Equal(t, absent, may)
	require.Empty(t, g.objects)
}

func TestGuardAfterADeparture(t *testing.T) {
	g := newGuard()
	require.Equal(t, absent, inside(g, view{}))
	g.depart(website, "9")
	require.Equal(t, run, inside(g, mine("12")), "it is back, so nothing is released")
	g.depart(website, "15")

	_, acknowledge := g.leave(website)
	require.False(t, acknowledge, "one is still inside")
	asked, acknowledge := g.leave(website)
	require.True(t, acknowledge)
	require.Zero(t, asked)

	may, _ := once(g, view{})
	require.Equal(t, unclear, may, "it is being released")
	g.settle(website, outcome{left: true})

	may, _ = once(g, mine("12"))
	require.Equal(t, unclear, may, "another cache is behind")
	may, _ = once(g, view{})
	require.Equal(t, gone, may)
}
