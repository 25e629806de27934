// Package membership determines which shards a ring has, and which of them are available, from the Leases that carry
// the ring's label.
//
// A shard is available exactly if the Lease is held under its own name and does not say that the shard stops, the name
// is a valid label value, no Lease of the same name is held for the same ring in another namespace, the Lease announces
// the ring's shard label if that is not the default, and fewer than [MaxShards] such Leases are older. Availability
// depends only on the holders and the ages of the Leases and on what they say about stopping and the label, not on a
// clock, a state label, or the order of events. Therefore, every replica of every service that has seen the same Leases
// assigns an object to the same owner.
//
// A shard whose Lease announces namespaces is available for the objects there only: see [View.OwnerIn]. What belongs to
// no shard stays without one.
//
// A shard that would be available, and whose Lease reports that it stops, works until its objects are drained: see
// [View.Works]. So does a shard that stands by, because the ring has enough active shards: see [Rules].Active.
//
// [View] is this knowledge at one moment and never changes. [Index] keeps the current view of every ring while Leases
// come and go. The package receives Leases and answers queries; it watches nothing itself.
package membership

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"
	"unique"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/hashring"
	"github.com/clusterring/clusterring/services/internal/key"
	"github.com/clusterring/clusterring/services/internal/lease"
)

// Shard is what a ring knows about one Lease.
type Shard struct {
	// Namespace is the namespace of the Lease.
	Namespace string
	// Name is the name of the Lease, and therefore of the shard.
	Name string
	// Holder is the identity that holds the Lease; empty after a release.
	Holder string
	// UID is the UID of the Lease. A Lease that was deleted and recreated has another UID.
	UID types.UID
	// Created is when the API server created the Lease, in seconds since 1970.
	Created int64
	// Duration is the duration of the Lease as returned by [lease.RecordOf].
	Duration time.Duration
	// Stopping reports whether the shard holds its Lease, and says in it that it was told to stop: it works until its
	// objects are drained.
	Stopping bool
	// Acquired is when its holder took the Lease, by the holder's clock, in microseconds since 1970; 0 if the Lease does
	// not say so.
	Acquired int64
	// Standby reports whether the shard could own objects, but the ring has enough active shards: it works until its
	// objects are drained.
	Standby bool
	// Pod is the name of the Pod that runs the shard, if the Lease reports that it differs from the name of the shard;
	// otherwise empty.
	Pod string
	// Label is the key of the shard label by which the shard selects its objects, if its Lease announces one; empty for
	// the default.
	Label string
	// Watches are the namespaces in which the shard watches its objects, separated by commas, if its Lease announces some;
	// empty for all.
	Watches string
	// HoldsOff reports whether the Lease announces a hold-off.
	HoldsOff bool
	// Available reports whether the shard may own objects.
	Available bool
	// Problem explains why a shard that holds its Lease is not available; otherwise empty.
	Problem string
}

// View is an immutable snapshot of a ring's shards. It may be used by any number of goroutines.
//
// # Invariants
//
//  1. Equal sets of Leases that count result in equal views, in whatever order they were seen.
//  2. Every available name belongs to exactly one Lease and is a valid, non-empty label value.
//  3. The renewal of a Lease changes no view.
type View struct {
	ringName  string
	rules     Rules
	ignored   int
	shards    []Shard  // sorted by name, then namespace
	available []string // sorted
	working   []string // sorted: available, stopping, or standing by
	table     func() *hashring.Table
	scopes    *scopes
	byPod     func() map[types.NamespacedName]string // of each Pod that runs one working shard; "" if it runs several

	fingerprint func() string
}

// Namespaces are the namespaces whose Leases count for a ring, as in [v1alpha1.ClusterRingSpec].ShardNamespaces.
type Namespaces []string

// Count reports whether Leases in a namespace count.
func (n Namespaces) Count(namespace string) bool {
	return v1alpha1.ClusterRingSpec{ShardNamespaces: n}.CountsShardsIn(namespace)
}

// Rules are what the spec of a ring says about its shards. The zero value: Leases in all namespaces count, and all
// available shards are active.
type Rules struct {
	// Namespaces are the namespaces whose Leases count.
	Namespaces Namespaces
	// Active is how many shards may own objects, as in [v1alpha1.ClusterRingSpec].ActiveShards; 0 stands for all.
	Active int
	// Paused lets objects stay where they are: see [View.Place].
	Paused bool
	// Label is the key of the shard label, as in [v1alpha1.ClusterRingSpec].ShardLabel; empty for the default. A shard
	// whose Lease announces another one would not see its objects, so it is not available.
	Label string
}

// RulesOf returns the rules of a ring.
func RulesOf(ring *v1alpha1.ClusterRing) Rules {
	r := Rules{Namespaces: ring.Spec.ShardNamespaces, Label: ring.Spec.ShardLabel, Paused: ring.Spec.Paused}
	if n := ring.Spec.ActiveShards; n != nil {
		r.Active = int(*n)
	}

	return r
}

func (r Rules) equal(o Rules) bool {
	return r.Active == o.Active && r.Label == o.Label && r.Paused == o.Paused && slices.Equal(r.Namespaces, o.Namespaces)
}

// NewView returns the view of a ring without rules, as [Rules.View] does.
func NewView(ringName string, leases []*coordinationv1.Lease, rings *hashring.Cache) *View {
	return Rules{}.View(ringName, leases, rings)
}

// View returns the view of the ring with the given name. It ignores Leases that do not carry the ring's label, and
// those in namespaces that do not count. It keeps none of the Leases. The table is taken from rings when it is first
// needed. If rings is nil, it is built for this view alone.
func (r Rules) View(ringName string, leases []*coordinationv1.Lease, rings *hashring.Cache) *View {
	var shards []Shard

	for _, l := range leases {
		if name := l.Labels[contract.LabelClusterRing]; name != "" && name == ringName {
			shards = append(shards, shardOf(l))
		}
	}

	return newView(ringName, r, shards, rings)
}

// newView completes and keeps those of the given shards that count. shardOf has created them.
func newView(ringName string, rules Rules, all []Shard, rings *hashring.Cache) *View {
	shards := slices.DeleteFunc(all, func(s Shard) bool { return !rules.Namespaces.Count(s.Namespace) })
	ignored := len(all) - len(shards)
	slices.SortFunc(shards, func(a, b Shard) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Namespace, b.Namespace))
	})

	judge(shards, rules.Label)
	standBy(ringName, rules.Active, shards)

	var available, working []string

	for _, s := range shards {
		if s.Available {
			available = append(available, s.Name)
		}

		if s.Available || s.Standby || s.Stopping && s.Problem == "" {
			working = append(working, s.Name)
		}
	}

	build := hashring.New
	if rings != nil {
		build = rings.Get
	}

	v := &View{
		ringName:  ringName,
		rules:     rules,
		ignored:   ignored,
		shards:    shards,
		available: available,
		working:   working,
		table:     sync.OnceValue(func() *hashring.Table { return build(available) }),
	}
	v.scope(build)
	v.byPod = sync.OnceValue(v.pods)
	v.fingerprint = sync.OnceValue(func() string { return hashring.Fingerprint(v.names()) })

	return v
}

// shardOf returns what a Lease alone determines; judge adds what depends on others. Strings that thousands of Leases
// share are stored once.
func shardOf(l *coordinationv1.Lease) Shard {
	record := lease.RecordOf(l)
	if record.Holder == l.Name {
		record.Holder = l.Name
	}

	return Shard{
		Namespace: unique.Make(l.Namespace).Value(), Name: l.Name, UID: l.UID, Holder: record.Holder,
		Created: max(l.CreationTimestamp.Unix(), 0), Acquired: max(record.AcquireTime.UnixMicro(), 0), // 0 if unknown
		Duration: record.Duration,
		Stopping: record.HeldBy(l.Name) && lease.Stopping(l),
		Pod:      lease.Pod(l),
		Label:    unique.Make(lease.ShardLabel(l)).Value(),
		Watches:  unique.Make(lease.Namespaces(l)).Value(),
		HoldsOff: l.Annotations[contract.AnnotationHoldOff] != "",
	}
}

// SameShard reports whether two states of one Lease report the same about a ring's shards: a renewal changes nothing.
func SameShard(a, b *coordinationv1.Lease) bool {
	return a.Labels[contract.LabelClusterRing] == b.Labels[contract.LabelClusterRing] && shardOf(a) == shardOf(b)
}

// MaxShards is how many shards of a ring may be available. A table for this number takes 0.1 s to build, in every
// replica of every service, and its shards renew their Leases some 400 times per second with the default durations; a
// ring should stay below.
//
// The shards with the oldest Leases are available. Like everything else, this depends only on the set of Leases, and
// everyone who creates more of them takes no objects from the shards that were there before. A shard that exceeds the
// limit is treated like any other that holds its Lease and is not available: nothing is assigned to it, and nothing is
// taken from it without its acknowledgement.
const MaxShards = 2000

var tooMany = fmt.Sprintf("the ring has %d shards with older Leases, which is the limit: use several rings, "+
	"or set spec.shardNamespaces if these Leases are not those of shards", MaxShards)

// judge determines which of the sorted shards are available in a ring with the given shard label. Beyond the limit, the
// shards with the youngest Leases are not; of Leases of the same age, the order of the names decides.
func judge(shards []Shard, label string) {
	for start := 0; start < len(shards); {
		end := start + 1
		for end < len(shards) && shards[end].Name == shards[start].Name {
			end++
		}

		judgeName(shards[start:end], label)
		start = end
	}

	byAge := candidatesOf(shards)
	if len(byAge) <= MaxShards {
		return
	}

	slices.SortStableFunc(byAge, func(a, b *Shard) int { return cmp.Compare(a.Created, b.Created) })

	for _, s := range byAge[MaxShards:] {
		s.Available, s.Problem = false, tooMany
	}
}

// candidatesOf returns the available shards.
func candidatesOf(shards []Shard) (all []*Shard) {
	for i := range shards {
		if shards[i].Available {
			all = append(all, &shards[i])
		}
	}

	return all
}

// standBy lets all shards but the given number of active ones stand by; 0 lets none. The shards that have held their
// Leases for longest are active. Otherwise, a hash decides, so that several rings of the same processes do not all
// choose the same one. The time at which a Lease was taken comes from the clock of the shard, which can at most choose
// another shard: a Lease was not taken before the API server has created it.
func standBy(ringName string, active int, shards []Shard) {
	if active <= 0 {
		return
	}

	byTerm := candidatesOf(shards)
	if len(byTerm) <= active {
		return
	}

	hash := func(s *Shard) []byte {
		sum := sha256.Sum256([]byte(ringName + "/" + s.Name))
		return sum[:]
	}

	slices.SortFunc(byTerm, func(a, b *Shard) int {
		if order := cmp.Compare(a.since(), b.since()); order != 0 {
			return order
		}

		return bytes.Compare(hash(a), hash(b))
	})

	for _, s := range byTerm[active:] {
		s.Available, s.Standby = false, true
	}
}

// since returns since when the holder has held the Lease, in microseconds since 1970.
func (s *Shard) since() int64 { return max(s.Acquired, s.Created*time.Second.Microseconds()) }

// judgeName does the same for all shards of one name, without the limit. At most one of them can be available.
func judgeName(shards []Shard, label string) {
	var (
		held       []int
		namespaces []string
	)

	for i, s := range shards {
		if (lease.Record{Holder: s.Holder}).HeldBy(s.Name) {
			held, namespaces = append(held, i), append(namespaces, s.Namespace)
		}
	}

	for _, i := range held {
		shards[i].Problem = cmp.Or(problem(shards[i], namespaces), mislabelled(shards[i], label))
		shards[i].Available = shards[i].Problem == "" && !shards[i].Stopping
	}
}

// problem explains why the shard, which holds its Lease, is not available, or returns nothing if it is. The namespaces
// are all namespaces in which the name is held.
func problem(s Shard, namespaces []string) string {
	if errs := validation.IsValidLabelValue(s.Name); s.Name == "" || len(errs) > 0 {
		return fmt.Sprintf("the name cannot be the value of a label (%s): start the shard under a name that can",
			strings.Join(errs, "; "))
	}

	if len(namespaces) > 1 {
		return fmt.Sprintf("the name is held in the namespaces %s: start these shards under different names",
			strings.Join(namespaces, ", "))
	}

	return ""
}

// mislabelled explains that the shard selects its objects by another label than that of the ring; empty if it does not.
func mislabelled(s Shard, label string) string {
	const remedy = "start the shard with the shardLabel of the ring (option ShardLabel, which the environment variable SHARD_LABEL may contain)"

	switch {
	case s.Label == label:
		return ""
	case label == "":
		return fmt.Sprintf("the shard selects its objects by the label %s, but the ring has no spec.shardLabel: start the "+
			"shard without one", s.Label)
	case s.Label == "":
		return fmt.Sprintf("the shard does not announce by which label it selects its objects, and spec.shardLabel of the "+
			"ring is %s: %s", label, remedy)
	}

	return fmt.Sprintf("the shard selects its objects by the label %s, but spec.shardLabel of the ring is %s: %s",
		s.Label, label, remedy)
}

// RingName returns the name of the ClusterRing.
func (v *View) RingName() string { return v.ringName }

// Namespaces returns the namespaces whose Leases count. The caller must not change them.
func (v *View) Namespaces() Namespaces { return v.rules.Namespaces }

// Ignored returns the number of Leases that carry the ring's label in namespaces that do not count.
func (v *View) Ignored() int { return v.ignored }

// Shards returns all shards, sorted by name, then namespace. The caller owns the slice.
func (v *View) Shards() []Shard { return slices.Clone(v.shards) }

// Available reports whether the shard may own objects.
func (v *View) Available(shard string) bool {
	_, ok := slices.BinarySearch(v.available, shard)
	return ok
}

// Works reports whether the shard may work on objects: it is available, or was told to stop, or stands by. The latter
// two work until their objects are drained. Objects leave a shard that works only when it has released them.
func (v *View) Works(shard string) bool {
	_, ok := slices.BinarySearch(v.working, shard)
	return ok
}

// HoldsOff reports whether the shard has a Lease, held or not, that announces a hold-off; if it has several, whether
// all do. Such a shard also compares its caches with the handover annotation before it works on an object.
func (v *View) HoldsOff(shard string) (does bool) {
	i, does := slices.BinarySearchFunc(v.shards, shard, func(s Shard, name string) int {
		return cmp.Compare(s.Name, name)
	})
	for ; i < len(v.shards) && v.shards[i].Name == shard; i++ {
		does = does && v.shards[i].HoldsOff
	}

	return does
}

// WorkingShards returns the names of all shards that may work on objects, sorted. The caller owns the slice.
func (v *View) WorkingShards() []string { return slices.Clone(v.working) }

// StandbyShards returns the names of the shards that stand by, sorted. The caller owns the slice.
func (v *View) StandbyShards() (names []string) {
	for _, s := range v.shards {
		if s.Standby {
			names = append(names, s.Name)
		}
	}

	return names
}

// Activate returns the shards that would be available if those with the given names could be, and no others, in the
// order of the names. Shards that the ring does not have would have taken their Leases last.
func (v *View) Activate(names []string) (active []string) {
	shards := make([]Shard, len(names))
	for i, name := range names {
		shards[i] = Shard{Name: name, Acquired: math.MaxInt64, Available: true}

		for _, s := range v.shards {
			if s.Name == name && (s.Available || s.Standby) {
				shards[i].Created, shards[i].Acquired = s.Created, s.Acquired
			}
		}
	}

	standBy(v.ringName, v.rules.Active, shards)

	for _, s := range candidatesOf(shards) {
		active = append(active, s.Name)
	}

	return active
}

// Stops reports whether a shard works that was told to stop.
func (v *View) Stops() bool {
	return slices.ContainsFunc(v.shards, func(s Shard) bool { return s.Stopping && v.Works(s.Name) })
}

// AvailableShards returns the names of all shards that may own objects, sorted. The caller owns the slice.
func (v *View) AvailableShards() []string { return slices.Clone(v.available) }

// Owner returns the available shard that owns the key of a cluster-scoped object; see [View.OwnerIn] for others. ok is
// false if no shard is available.
func (v *View) Owner(k key.Key) (shard string, ok bool) { return v.Table().Owner(k.Hash()) }

// Table returns the table of the available shards. The first call for a set of shards builds it.
func (v *View) Table() *hashring.Table { return v.table() }

// Fingerprint returns the fingerprint of the tables: it is equal for equal sets of available shards that watch the same
// namespaces. It does not build the table: while many shards come and go, most views are only compared.
func (v *View) Fingerprint() string { return v.fingerprint() }

// Problems returns a message for every shard that has a problem. Each message begins with namespace/name, and messages
// are in the order of the shards.
func (v *View) Problems() []string {
	var problems []string

	for _, s := range v.shards {
		if s.Problem != "" {
			problems = append(problems, fmt.Sprintf("shard %s/%s: %s", s.Namespace, s.Name, s.Problem))
		}
	}

	return problems
}
