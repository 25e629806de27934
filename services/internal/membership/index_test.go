package membership_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/clusterring/clusterring/services/internal/membership"
)

// watched returns an index and a function that returns the rings that have changed since its last call.
func watched() (x *membership.Index, changes func() []string) {
	x = membership.NewIndex()

	var rings []string
	x.Subscribe(func(ring string) { rings = append(rings, ring) })

	return x, func() []string {
		defer func() { rings = nil }()
		return rings
	}
}

func name(namespacedName string) types.NamespacedName {
	l := leaseOf("", namespacedName, "")
	return types.NamespacedName{Namespace: l.Namespace, Name: l.Name}
}

func TestReplace(t *testing.T) {
	x, changes := watched()
	x.Upsert(leaseOf("r", "ns/a", "a"))
	x.Upsert(leaseOf("r", "ns/b", "b"))
	x.Upsert(leaseOf("r", "other/c", "c"))
	x.Upsert(leaseOf("s", "ns/d", "d"))
	x.Upsert(leaseOf("untouched", "ns/e", "e"))
	changes()

	all := []*coordinationv1.Lease{leaseOf("r", "ns/b", "b"), leaseOf("untouched", "ns/e", "e"),
		leaseOf("new", "ns/f", "f"), leaseOf("new", "ns/g", "g")}
	x.Replace(all)
	require.Equal(t, []string{"new", "r", "s"}, changes(), "once each")
	require.Equal(t, []string{"b"}, x.View("r").AvailableShards())
	require.Empty(t, x.View("s").Shards())
	require.Equal(t, []string{"e"}, x.View("untouched").AvailableShards())
	require.Equal(t, []string{"f", "g"}, x.View("new").AvailableShards())

	x.Replace(all)
	require.Empty(t, changes())
}

func TestIndexIgnoresRenewals(t *testing.T) {
	x, changes := watched()
	l := leaseOf("r", "ns/a", "a")
	x.Upsert(l)
	require.Equal(t, []string{"r"}, changes())

	before := x.View("r")

	renewed := l.DeepCopy()
	renewed.ResourceVersion = "8"
	renewed.Spec.RenewTime = new(metav1.NewMicroTime(time.Unix(1, 0)))
	metav1.SetMetaDataLabel(&renewed.ObjectMeta, "alpha.sharding.timebertt.dev/state", "ready")
	x.Upsert(renewed)
	require.Empty(t, changes())
	require.Same(t, before, x.View("r"))

	renewed.Spec.LeaseDurationSeconds = new(int32(30))
	x.Upsert(renewed)
	require.Equal(t, []string{"r"}, changes())
	require.Equal(t, 30*time.Second, x.View("r").Shards()[0].Duration)
	require.Same(t, before.Table(), x.View("r").Table(), "the set of available shards is the same")
}

func TestIndexNoticesALeaseThatMovesToAnotherRing(t *testing.T) {
	x, changes := watched()
	x.Upsert(leaseOf("old", "ns/a", "a"))
	x.Upsert(leaseOf("old", "ns/b", "b"))
	changes()

	x.Upsert(leaseOf("new", "ns/a", "a"))
	require.ElementsMatch(t, []string{"old", "new"}, changes())
	require.Equal(t, []string{"b"}, x.View("old").AvailableShards())
	require.Equal(t, []string{"a"}, x.View("new").AvailableShards())

	x.Upsert(leaseOf("", "ns/b", "b"))
	require.Equal(t, []string{"old"}, changes())
	require.Empty(t, x.View("old").Shards())

	x.Upsert(leaseOf("", "ns/b", "b"))
	require.Empty(t, changes())
}

// events are Upserts and Deletes (even of a Lease without a ring) in any order; the last one for each name counts.
func events() *rapid.Generator[[]*coordinationv1.Lease] {
	return rapid.SliceOf(rapid.Custom(func(t *rapid.T) *coordinationv1.Lease {
		l := leaseOf(
			rapid.SampledFrom([]string{"r", "s", "", "deleted"}).Draw(t, "ring"),
			rapid.SampledFrom([]string{"one/a", "two/a", "one/b", "one/c", "two/b"}).Draw(t, "name"),
			rapid.SampledFrom([]string{"a", "b", "c", ""}).Draw(t, "holder"))
		if rapid.Bool().Draw(t, "stops") {
			stops(l, time.Unix(1_800_000_000, 0))
		}

		return l
	}))
}

func apply(x *membership.Index, l *coordinationv1.Lease) {
	if l.Labels["alpha.sharding.timebertt.dev/clusterring"] == "deleted" {
		x.Delete(types.NamespacedName{Namespace: l.Namespace, Name: l.Name})
		return
	}
	x.Upsert(l)
}

func TestAnyOrderOfEventsGivesTheViewOfTheFinalSet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := membership.NewIndex()
		final := map[types.NamespacedName]*coordinationv1.Lease{}

		for _, l := range events().Draw(t, "events") {
			apply(x, l)

			if rapid.Bool().Draw(t, "look in between") {
				x.View("r")
			}

			final[types.NamespacedName{Namespace: l.Namespace, Name: l.Name}] = l
		}

		var leases []*coordinationv1.Lease
		for _, l := range final {
			leases = append(leases, l)
		}

		leases = rapid.Permutation(leases).Draw(t, "order")
		for _, ringName := range []string{"r", "s", "unknown"} {
			want, got := membership.NewView(ringName, leases, nil), x.View(ringName)
			require.Equal(t, want.Shards(), got.Shards())
			require.Equal(t, want.AvailableShards(), got.AvailableShards())
			require.Equal(t, want.WorkingShards(), got.WorkingShards())
			require.Equal(t, want.Problems(), got.Problems())
			require.Equal(t, want.Fingerprint(), got.Fingerprint())
		}
	})
}

// A subscriber that reads the view at each call has the final view after the last call.
func TestIndexIsSafeForConcurrentUse(t *testing.T) {
	const shards, rounds = 8, 50

	x := membership.NewIndex()

	var (
		calls atomic.Int64
		mu    sync.Mutex
	)

	latest := map[string]*membership.View{}
	x.Subscribe(func(ring string) {
		calls.Add(1)
		mu.Lock()
		defer mu.Unlock()

		latest[ring] = x.View(ring)
	})

	var wg sync.WaitGroup
	for i := range shards {
		wg.Go(func() {
			id := fmt.Sprintf("ns/s-%d", i)
			for round := range rounds {
				x.Upsert(leaseOf(fmt.Sprintf("r-%d", round%2), id, fmt.Sprintf("s-%d", i)))

				if round%7 == 0 {
					x.Delete(name(id))
				}
				x.View("r-0").Fingerprint()
			}
			x.Upsert(leaseOf("r-0", id, fmt.Sprintf("s-%d", i)))
		})
	}
	wg.Wait()

	require.Len(t, x.View("r-0").AvailableShards(), shards)
	require.Empty(t, x.View("r-1").Shards())
	require.Positive(t, calls.Load())
	mu.Lock()
	defer mu.Unlock()
	require.Same(t, x.View("r-0"), latest["r-0"])
	require.Empty(t, latest["r-1"].Shards())
}

// largeIndex returns an index with 500 shards in each of 50 rings, and their Leases.
func largeIndex() (*membership.Index, []*coordinationv1.Lease) {
	x := membership.NewIndex()

	var leases []*coordinationv1.Lease

	for r := range 50 {
		for s := range 500 {
			name := fmt.Sprintf("shard-%d-%d", r, s)
			l := leaseOf(fmt.Sprintf("ring-%d", r), "ns/"+name, name)
			x.Upsert(l)
			leases = append(leases, l)
		}
	}

	return x, leases
}

func BenchmarkRenewal(b *testing.B) {
	x, leases := largeIndex()
	b.ReportAllocs()

	i := 0
	for b.Loop() {
		x.Upsert(leases[i%len(leases)])
		i++
	}
}

// The first view after a change, without and with the table.
func BenchmarkViewAfterChange(b *testing.B) {
	for _, withRing := range []bool{false, true} {
		b.Run(fmt.Sprintf("ring=%t", withRing), func(b *testing.B) {
			x, leases := largeIndex()
			l := leases[0]
			b.ReportAllocs()

			for n := 0; b.Loop(); n++ {
				holder := fmt.Sprintf("holder-%d", n)

				l.Spec.HolderIdentity = &holder
				if n%2 == 0 {
					l.Spec.HolderIdentity = &l.Name
				}
				x.Upsert(l)

				if v := x.View("ring-0"); withRing {
					v.Table()
				}
			}
		})
	}
}
