package membership_test

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/services/internal/hashring"
	"github.com/clusterring/clusterring/services/internal/key"
	"github.com/clusterring/clusterring/services/internal/membership"
)

// TestMain makes rapid use the same input in each run, unless -rapid.seed is set.
func TestMain(m *testing.M) {
	if err := flag.Set("rapid.seed", "1"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// leaseOf returns the Lease namespace/name of a ring, held by holder.
func leaseOf(ringName, namespacedName, holder string) *coordinationv1.Lease {
	namespace, name, _ := strings.Cut(namespacedName, "/")

	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name,
			Labels: map[string]string{contract.LabelClusterRing: ringName},
		},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: new(int32(15))},
	}
}

func TestAvailability(t *testing.T) {
	long := strings.Repeat("x", 64)
	for _, tc := range []struct {
		name      string
		leases    []*coordinationv1.Lease
		available []string
		problems  []string
	}{
		{name: "no Leases"},
		{
			name: "held, released, taken, and held by another",
			leases: []*coordinationv1.Lease{
				leaseOf("r", "ns/c", "c"), leaseOf("r", "ns/a", "a"), leaseOf("r", "ns/released", ""),
				leaseOf("r", "ns/taken", "shardlease-controller"), leaseOf("r", "ns/foreign", "a"),
			},
			available: []string{"a", "c"},
		},
		{
			name:      "Leases of other rings and of none",
			leases:    []*coordinationv1.Lease{leaseOf("r", "ns/a", "a"), leaseOf("other", "ns/b", "b"), leaseOf("", "ns/c", "c"), {}},
			available: []string{"a"},
		},
		{
			name:   "one name held in two namespaces",
			leases: []*coordinationv1.Lease{leaseOf("r", "two/a", "a"), leaseOf("r", "one/a", "a"), leaseOf("r", "one/b", "b")},
			problems: []string{
				"shard one/a: the name is held in the namespaces one, two: start these shards under different names",
				"shard two/a: the name is held in the namespaces one, two: start these shards under different names",
			},
			available: []string{"b"},
		},
		{
			name:      "one name in two namespaces, held in one",
			leases:    []*coordinationv1.Lease{leaseOf("r", "two/a", "a"), leaseOf("r", "one/a", "")},
			available: []string{"a"},
		},
		{
			name:      "one name in two rings",
			leases:    []*coordinationv1.Lease{leaseOf("r", "one/a", "a"), leaseOf("other", "two/a", "a")},
			available: []string{"a"},
		},
		{
			name: "names with dots and of 63 characters",
			leases: []*coordinationv1.Lease{
				leaseOf("r", "ns/web.0.example.com", "web.0.example.com"), leaseOf("r", "ns/"+long[:63], long[:63]),
			},
			available: []string{"web.0.example.com", long[:63]},
		},
		{
			name:   "a name that is no label value",
			leases: []*coordinationv1.Lease{leaseOf("r", "ns/a", "a"), leaseOf("r", "ns/"+long, long)},
			problems: []string{
				"shard ns/" + long + ": the name cannot be the value of a label (must be no more than 63 bytes): " +
					"start the shard under a name that can",
			},
			available: []string{"a"},
		},
		{
			name:   "a name that is no label value, not held",
			leases: []*coordinationv1.Lease{leaseOf("r", "ns/"+long, "")},
		},
		{
			name:   "a shard named like the lease controller",
			leases: []*coordinationv1.Lease{leaseOf("r", "ns/shardlease-controller", "shardlease-controller")},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := membership.NewView("r", tc.leases, nil)
			require.Equal(t, "r", v.RingName())
			require.ElementsMatch(t, tc.available, v.AvailableShards())
			require.True(t, slices.IsSorted(v.AvailableShards()))
			require.Equal(t, tc.problems, v.Problems())
			require.Equal(t, hashring.New(tc.available).Fingerprint(), v.Fingerprint())

			for _, s := range v.Shards() {
				require.Equal(t, s.Available, v.Available(s.Name) && s.Holder == s.Name, "%s/%s", s.Namespace, s.Name)
				require.False(t, s.Available && s.Problem != "", "%s/%s", s.Namespace, s.Name)
			}
		})
	}
}

func TestViewShowsEveryShard(t *testing.T) {
	b := leaseOf("r", "two/b", "somebody")
	b.Spec.LeaseDurationSeconds = nil
	v := membership.NewView("r", []*coordinationv1.Lease{b, leaseOf("r", "two/a", "a"), leaseOf("r", "one/b", "b")}, nil)
	want := []membership.Shard{
		{Namespace: "two", Name: "a", Holder: "a", Duration: 15 * time.Second, Available: true},
		{Namespace: "one", Name: "b", Holder: "b", Duration: 15 * time.Second, Available: true},
		{Namespace: "two", Name: "b", Holder: "somebody", Duration: 15 * time.Second},
	}
	require.Equal(t, want, v.Shards())

	v.Shards()[0].Name = "changed"
	v.AvailableShards()[0] = "changed"
	require.Equal(t, want, v.Shards())
	require.Equal(t, []string{"a", "b"}, v.AvailableShards())
}

func TestHoldOffsAreSeen(t *testing.T) {
	announces := func(name, holder string) *coordinationv1.Lease {
		l := leaseOf("r", name, holder)
		l.Annotations = map[string]string{contract.AnnotationHoldOff: "2s"}

		return l
	}

	leases := []*coordinationv1.Lease{
		announces("n/a", "a"), leaseOf("r", "m/b", "gone"), announces("n/b", "b"), leaseOf("r", "n/c", "c"), announces("n/d", ""),
	}
	v := membership.NewView("r", leases, nil)

	for shard, want := range map[string]bool{"a": true, "b": false, "c": false, "d": true, "e": false} {
		require.Equal(t, want, v.HoldsOff(shard), shard)
	}

	require.False(t, membership.SameShard(announces("n/c", "c"), leases[3]))
}

func TestOwner(t *testing.T) {
	k := key.Key{Kind: "ConfigMap", Namespace: "default", Name: "a"}
	_, ok := membership.NewView("r", nil, nil).Owner(k)
	require.False(t, ok)

	v := membership.NewView("r", []*coordinationv1.Lease{leaseOf("r", "ns/a", "a"), leaseOf("r", "ns/b", "")}, nil)
	owner, ok := v.Owner(k)
	require.True(t, ok)
	require.Equal(t, "a", owner)
}

func TestViewsOfEqualSetsShareTheirRing(t *testing.T) {
	rings := hashring.NewCache(2)
	a := membership.NewView("r", []*coordinationv1.Lease{leaseOf("r", "ns/a", "a"), leaseOf("r", "ns/b", "b")}, rings)
	b := membership.NewView("s", []*coordinationv1.Lease{leaseOf("s", "ns/b", "b"), leaseOf("s", "other/a", "a")}, rings)
	require.Same(t, a.Table(), b.Table())
}

// A lookup in a view is on the path of every write to a sharded resource.
func TestOwnerAllocatesNothing(t *testing.T) {
	v := membership.NewView("r", []*coordinationv1.Lease{leaseOf("r", "ns/a", "a"), leaseOf("r", "ns/b", "b")}, nil)
	k := key.Key{Kind: "ConfigMap", Namespace: "default", Name: "a"}
	require.Zero(t, testing.AllocsPerRun(100, func() { _, _ = v.Owner(k) }))
}

// A ring has at most this number of available shards: those with the oldest Leases. Which ones depends only on the set.
func TestShardsAreCapped(t *testing.T) {
	began := time.Unix(1_700_000_000, 0)

	var leases []*coordinationv1.Lease

	add := func(name string, created time.Time) {
		l := leaseOf("r", "ns/"+name, name)
		l.CreationTimestamp = metav1.NewTime(created)
		leases = append(leases, l)
	}

	for i := range membership.MaxShards - 1 {
		add(fmt.Sprintf("shard-%05d", i), began)
	}

	add("a-flood-1", began.Add(time.Second))
	add("a-flood-3", began.Add(2*time.Second))
	add("a-flood-2", began.Add(2*time.Second))
	add("a-flood-0", began.Add(3*time.Second))

	leases = append(leases, leaseOf("r", "ns/0-released", ""))

	view := membership.NewView("r", leases, nil)
	slices.Reverse(leases)
	other := membership.NewView("r", leases, nil)

	index := membership.NewIndex()
	for _, l := range leases {
		index.Upsert(l)
	}

	require.Len(t, view.AvailableShards(), membership.MaxShards)
	require.Equal(t, view.Shards(), other.Shards(), "whatever the order")
	require.Equal(t, view.Shards(), index.View("r").Shards())
	require.True(t, slices.IsSorted(view.AvailableShards()))
	require.True(t, view.Available("a-flood-1"))
	require.True(t, view.Available("shard-00000"), "Leases that come later displace no shard")
	require.True(t, view.Available(fmt.Sprintf("shard-%05d", membership.MaxShards-2)))

	const limit = ": the ring has 2000 shards with older Leases, which is the limit: use several rings, " +
		"or set spec.shardNamespaces if these Leases are not those of shards"
	require.Equal(t, []string{"shard ns/a-flood-0" + limit, "shard ns/a-flood-2" + limit, "shard ns/a-flood-3" + limit}, view.Problems())

	index.Delete(types.NamespacedName{Namespace: "ns", Name: "shard-00000"})
	require.True(t, index.View("r").Available("a-flood-2"), "the next one, of two of the same age")
	require.False(t, index.View("r").Available("a-flood-3"))
}

func BenchmarkLargestRing(b *testing.B) {
	names := make([]string, membership.MaxShards)
	for i := range names {
		names[i] = fmt.Sprintf("shard-%05d", i)
	}

	for b.Loop() {
		hashring.New(names)
	}
}

// stops makes a Lease say that its shard stops.
func stops(l *coordinationv1.Lease, renewed time.Time) *coordinationv1.Lease {
	l.Spec.RenewTime = new(metav1.NewMicroTime(renewed))
	l.Annotations = map[string]string{contract.AnnotationStopping: contract.OfferValue(renewed)}

	return l
}

// A shard that stops works, but gets no objects. Whether a renewal is that of a process that stops is in the renewal itself.
func TestShardThatStops(t *testing.T) {
	renewed := time.Unix(1_800_000_000, 0)
	old := stops(leaseOf("r", "ns/c", "c"), renewed)
	old.Spec.RenewTime = new(metav1.NewMicroTime(renewed.Add(time.Second))) // by somebody who does not know the annotation
	view := membership.NewView("r", []*coordinationv1.Lease{
		leaseOf("r", "ns/a", "a"), stops(leaseOf("r", "ns/b", "b"), renewed),
		old, stops(leaseOf("r", "ns/released", ""), renewed),
		stops(leaseOf("r", "one/twice", "twice"), renewed), stops(leaseOf("r", "two/twice", "twice"), renewed),
	}, nil)

	require.Equal(t, []string{"a", "c"}, view.AvailableShards())
	require.Equal(t, []string{"a", "b", "c"}, view.WorkingShards())
	require.True(t, view.Works("b"))
	require.False(t, view.Available("b"))
	require.False(t, view.Works("released"))
	require.False(t, view.Works("twice"))
	require.Len(t, view.Problems(), 2, "of twice")
}
