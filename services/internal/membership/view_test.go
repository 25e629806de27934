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
	"pgregory.net/rapid"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/hashring"
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
			name: "Leases of other rings and of none",
			leases: []*coordinationv1.Lease{leaseOf("r", "ns/a", "a"), leaseOf("other", "ns/b", "b"),
				leaseOf("", "ns/c", "c"), {}},
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

func TestHoldOffsAreSeen(t *testing.T) {
	announces := func(name, holder string) *coordinationv1.Lease {
		l := leaseOf("r", name, holder)
		l.Annotations = map[string]string{contract.AnnotationHoldOff: "2s"}

		return l
	}

	leases := []*coordinationv1.Lease{
		announces("n/a", "a"), leaseOf("r", "m/b", "gone"), announces("n/b", "b"), leaseOf("r", "n/c", "c"), announces("n/d",
			""),
	}
	v := membership.NewView("r", leases, nil)

	for shard, want := range map[string]bool{"a": true, "b": false, "c": false, "d": true, "e": false} {
		require.Equal(t, want, v.HoldsOff(shard), shard)
	}

	require.False(t, membership.SameShard(announces("n/c", "c"), leases[3]))
}

func TestViewsOfEqualSetsShareTheirRing(t *testing.T) {
	rings := hashring.NewCache(2)
	a := membership.NewView("r", []*coordinationv1.Lease{leaseOf("r", "ns/a", "a"), leaseOf("r", "ns/b", "b")}, rings)
	b := membership.NewView("s", []*coordinationv1.Lease{leaseOf("s", "ns/b", "b"), leaseOf("s", "other/a", "a")}, rings)
	require.Same(t, a.Table(), b.Table())
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
	require.Equal(t, []string{"shard ns/a-flood-0" + limit, "shard ns/a-flood-2" + limit, "shard ns/a-flood-3" + limit},
		view.Problems())

	index.Delete(types.NamespacedName{Namespace: "ns", Name: "shard-00000"})
	require.True(t, index.View("r").Available("a-flood-2"), "the next one, of two of the same age")
	require.False(t, index.View("r").Available("a-flood-3"))
}

// stops makes a Lease say that its shard stops.
func stops(l *coordinationv1.Lease, renewed time.Time) *coordinationv1.Lease {
	l.Spec.RenewTime = new(metav1.NewMicroTime(renewed))
	l.Annotations = map[string]string{contract.AnnotationStopping: contract.OfferValue(renewed)}

	return l
}

// A shard that stops works, but gets no objects. Whether a renewal is that of a process that stops is in the renewal
// itself.
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

// TestShardsMustFollowTheLabelOfTheirRing: a shard that would not see its objects gets none.
func TestShardsMustFollowTheLabelOfTheirRing(t *testing.T) {
	const label, other = "cloudapi.team-orca.dev/shard", "example.com/other"

	says := func(name, label string) *coordinationv1.Lease {
		l := leaseOf("r", "n/"+name, name)
		if label != "" {
			l.Annotations = map[string]string{contract.AnnotationShardLabel: label}
		}

		return l
	}
	leases := []*coordinationv1.Lease{says("default", ""), says("other", other), says("right", label),
		says("long", label+strings.Repeat("x", 1000))}

	ring := &v1alpha1.ClusterRing{}
	ring.Name = "r"

	view := membership.RulesOf(ring).View("r", leases, nil)
	require.Equal(t, []string{"default"}, view.WorkingShards())
	require.Contains(t, view.Problems()[1],
		"shard n/other: the shard selects its objects by the label "+other+", but the ring has no spec.shardLabel")

	ring.Spec.ShardLabel = label
	view = membership.RulesOf(ring).View("r", leases, nil)
	require.Equal(t, []string{"right"}, view.AvailableShards())
	require.Equal(t, []string{"right"}, view.WorkingShards())
	require.Len(t, view.Problems(), 3)
	require.Contains(t, view.Problems()[0], "shard n/default: the shard does not announce by which label it selects "+
		"its objects, and spec.shardLabel of the ring is "+label)
	require.Contains(t, view.Problems()[2],
		"shard n/other: the shard selects its objects by the label "+other+", but spec.shardLabel of the ring is "+label)
	require.Less(t, len(view.Problems()[1]), 1000, "what a Lease says is not passed on at any length")
	require.False(t, membership.SameShard(says("other", other), says("other", label)))
}

// An index follows the namespaces that count, and the number of active shards.
func TestIndexFollowsTheRules(t *testing.T) {
	ring := &v1alpha1.ClusterRing{ObjectMeta: metav1.ObjectMeta{Name: "r"},
		Spec: v1alpha1.ClusterRingSpec{ShardNamespaces: []string{"ns"}}}

	x, changes := watched()
	require.Empty(t, x.ViewOf(ring).Shards())
	x.Upsert(takenAt("a", 0, 0))
	x.Upsert(leaseOf("r", "tenant/b", "b"))
	x.Upsert(leaseOf("s", "tenant/c", "c"))
	changes()

	require.Equal(t, []string{"a"}, x.View("r").AvailableShards())
	require.Equal(t, []string{"c"}, x.View("s").AvailableShards(), "another ring")
	require.Same(t, x.View("r"), x.ViewOf(ring))
	require.Empty(t, changes())

	ring.Spec.ShardNamespaces = append(ring.Spec.ShardNamespaces, "tenant")
	require.Equal(t, []string{"a", "b"}, x.ViewOf(ring).AvailableShards())
	require.Equal(t, []string{"r"}, changes())

	ring.Spec.ActiveShards = new(int32(1))
	require.Equal(t, []string{"b"}, x.ViewOf(ring).AvailableShards(), "the one that has held its Lease for longest")
	require.Equal(t, []string{"r"}, changes())
	require.True(t, x.View("r").Works("a"))

	x.Rule("r", membership.Rules{})
	require.Equal(t, []string{"a", "b"}, x.View("r").AvailableShards())
}

// A tenant can neither add a shard nor make one unavailable if the tenant's namespace does not count.
func TestAnyLeasesElsewhereMakeNoDifference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := events().Draw(t, "leases")
		last := map[string]*coordinationv1.Lease{}

		x := membership.NewIndex()
		x.Rule("r", membership.Rules{Namespaces: membership.Namespaces{"one"}})

		for _, l := range all {
			apply(x, l)
			last[l.Namespace+"/"+l.Name] = l
		}

		var one, leases []*coordinationv1.Lease
		for _, l := range last {
			leases = append(leases, l)
			if l.Namespace == "one" {
				one = append(one, l)
			}
		}

		want := membership.NewView("r", one, nil)
		for _, got := range []*membership.View{x.View("r"),
			membership.Rules{Namespaces: membership.Namespaces{"one"}}.View("r", leases, nil)} {
			require.True(t, slices.Equal(want.Shards(), got.Shards()))
			require.Equal(t, want.AvailableShards(), got.AvailableShards())
			require.Equal(t, want.Problems(), got.Problems())
		}
	})
}

// in is the Lease with the Pod in its annotation.
func in(pod string, l *coordinationv1.Lease) *coordinationv1.Lease {
	l.Annotations = map[string]string{contract.AnnotationPod: pod}

	return l
}

func TestRunBy(t *testing.T) {
	v := membership.Rules{Namespaces: membership.Namespaces{"ns", "more"}}.View("r", []*coordinationv1.Lease{
		leaseOf("r", "ns/a", "a"), leaseOf("r", "ns/released", ""), leaseOf("r", "ns/taken",
			contract.LeaseControllerIdentity),
		leaseOf("r", "elsewhere/x", "x"), leaseOf("other", "ns/y", "y"),
		leaseOf("r", "ns/once", "once"), leaseOf("r", "more/once", ""), leaseOf("r", "ns/twice", "twice"), leaseOf("r",
			"more/twice", "twice"),
		in("pod-0", leaseOf("r", "ns/slot-0", "slot-0")), in("pod-1", leaseOf("r", "ns/slot-1", "")),
		in("pod-2", leaseOf("r", "ns/slot-2", "slot-2")), in("pod-2", leaseOf("r", "ns/slot-3", "slot-3")),
		stops(leaseOf("r", "ns/stops", "stops"), time.Unix(1_800_000_000, 0)),
	}, nil)

	for pod, want := range map[string]string{
		"ns/a": "a", "more/a": "", "ns/released": "", "ns/taken": "", "elsewhere/x": "", "ns/y": "", "ns/nobody": "", "": "",
		"ns/once": "once", "more/once": "", "ns/twice": "", "more/twice": "",
		"ns/pod-0": "slot-0", "ns/slot-0": "", "more/pod-0": "", "ns/pod-1": "", "ns/pod-2": "", "ns/slot-2": "",
		"ns/stops": "",
	} {
		got, ok := v.RunBy(name(pod))
		require.Equal(t, want != "", ok, pod)

		if ok {
			require.Equal(t, want, got)
		}
	}
}

var begin = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

// takenAt returns the Lease of a shard, created and taken so long after the beginning.
func takenAt(name string, created, taken time.Duration) *coordinationv1.Lease {
	l := leaseOf("r", "ns/"+name, name)
	l.CreationTimestamp = metav1.NewTime(begin.Add(created))
	l.Spec.AcquireTime = &metav1.MicroTime{Time: begin.Add(taken)}

	return l
}

func TestActiveShards(t *testing.T) {
	stopping := takenAt("a", 0, 0)
	stopping.Spec.RenewTime = &metav1.MicroTime{Time: begin}
	metav1.SetMetaDataAnnotation(&stopping.ObjectMeta, contract.AnnotationStopping, contract.OfferValue(begin))

	for _, tc := range []struct {
		name            string
		active          int
		leases          []*coordinationv1.Lease
		available       []string
		standby, worked int
	}{
		{name: "all", leases: []*coordinationv1.Lease{takenAt("a", 0, 0), takenAt("b", 1, 1)}, available: []string{"a", "b"},
			worked: 2},
		{
			name: "those that have held their Leases for longest", active: 2,
			leases: []*coordinationv1.Lease{takenAt("a", 0, 3*time.Second), takenAt("b", 0, time.Second),
				takenAt("c", 0, 2*time.Second)},
			available: []string{"b", "c"}, standby: 1, worked: 3,
		},
		{
			name: "fewer than there may be", active: 3, leases: []*coordinationv1.Lease{takenAt("a", 0,
				0)}, available: []string{"a"}, worked: 1,
		},
		{
			name: "a shard whose clock is behind has not taken its Lease before it was created", active: 1,
			leases:    []*coordinationv1.Lease{takenAt("a", 0, time.Second), takenAt("b", time.Minute, -time.Hour)},
			available: []string{"a"}, standby: 1, worked: 2,
		},
		{
			name: "a standby replaces a shard that stops, which works until its objects are drained", active: 1,
			leases:    []*coordinationv1.Lease{stopping, takenAt("b", 0, time.Second), takenAt("c", 0, 2*time.Second)},
			available: []string{"b"}, standby: 1, worked: 3,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := membership.Rules{Active: tc.active}.View("r", tc.leases, nil)
			require.Equal(t, tc.available, v.AvailableShards())
			require.Len(t, v.StandbyShards(), tc.standby)
			require.Len(t, v.WorkingShards(), tc.worked)
			require.Empty(t, v.Problems())
		})
	}
}

// Rings with the same shards do not all choose the same ones.
func TestRingsChooseDifferentActiveShards(t *testing.T) {
	chosen := map[string]bool{}

	for _, ring := range []string{"one", "two", "three", "four", "five", "six"} {
		var leases []*coordinationv1.Lease

		for _, name := range []string{"a", "b", "c"} {
			l := takenAt(name, 0, 0)
			l.Labels[contract.LabelClusterRing] = ring
			leases = append(leases, l)
		}

		chosen[membership.Rules{Active: 1}.View(ring, leases, nil).AvailableShards()[0]] = true
	}

	require.Greater(t, len(chosen), 1)
}

// A shard that joins changes nothing while enough others are available, and a shard that is lost is replaced by exactly
// one other.
func TestActiveShardsStayActive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SliceOfNDistinct(rapid.StringMatching("[a-z]{1,3}"), 2, 12, rapid.ID).Draw(t, "names")
		active := rapid.IntRange(1, len(names)).Draw(t, "active")

		var leases []*coordinationv1.Lease

		for i, name := range names {
			at := time.Duration(rapid.IntRange(0, i).Draw(t, "taken")) * time.Second
			leases = append(leases, takenAt(name, 0, at))
		}

		rules := membership.Rules{Active: active}
		before := rules.View("r", leases, nil).AvailableShards()
		require.Len(t, before, active)

		joined := append(slices.Clone(leases), takenAt("joins", time.Hour, time.Hour))
		require.Equal(t, before, rules.View("r", joined, nil).AvailableShards())

		lost := rapid.SampledFrom(before).Draw(t, "lost")
		after := rules.View("r", slices.DeleteFunc(joined, func(l *coordinationv1.Lease) bool { return l.Name == lost }),
			nil).AvailableShards()
		require.Len(t, after, active)

		replaced := slices.DeleteFunc(slices.Clone(after), func(name string) bool { return slices.Contains(before, name) })
		require.Len(t, replaced, 1)
		require.NotContains(t, after, lost)
	})
}

// What would be, if other shards were there.
func TestActivate(t *testing.T) {
	leases := []*coordinationv1.Lease{takenAt("a", 0, 3*time.Second), takenAt("b", 0, time.Second),
		takenAt("c", 0, 2*time.Second)}
	v := membership.Rules{Active: 2}.View("r", leases, nil)

	require.Equal(t, []string{"b", "c"}, v.Activate([]string{"a", "b", "c"}))
	require.Equal(t, []string{"b", "c"}, v.Activate([]string{"new", "b", "c"}), "it would join last")
	require.Equal(t, []string{"a", "b"}, v.Activate([]string{"a", "b"}), "the standby replaces c")
	require.Equal(t, []string{"a", "new"}, v.Activate([]string{"a", "new"}))
	require.Equal(t, []string{"a", "b", "c"}, membership.NewView("r", leases, nil).Activate([]string{"a", "b", "c"}))
}
