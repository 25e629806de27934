// Package membership says which shards a ring has and which of them are available, from the Leases that carry the
// ring's label.
//
// A shard is available exactly if its Lease is held under its own name, that name can be written into a label, and no
// Lease of the same name is held for the same ring in another namespace. This depends on the Leases' holders alone: no
// clock, no state label and no order of events has a say, so every replica of every service that has seen the same
// Leases gives an object the same owner.
//
// [View] is that knowledge at one moment and never changes; [Index] keeps the current view of every ring while Leases
// come and go. The package is told of Leases and answers questions; it watches nothing itself.
package membership

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/hashring"
	"github.com/clusterring/clusterring/services/internal/key"
	"github.com/clusterring/clusterring/services/internal/lease"
)

// Shard is what a ring knows of one Lease.
type Shard struct {
	// Namespace is the Lease's.
	Namespace string
	// Name is the Lease's, and therefore the shard's.
	Name string
	// Holder is the identity that holds the Lease, empty after a release.
	Holder string
	// UID is the Lease's: one that was deleted and made anew has another.
	UID types.UID
	// Duration is the Lease's duration as [lease.RecordOf] gives it.
	Duration time.Duration
	// Available says whether the shard may own objects.
	Available bool
	// Problem says, for people, why a shard that holds its Lease is not available all the same. It is empty otherwise.
	Problem string
}

// View is an immutable picture of a ring's shards. It may be used by any number of goroutines.
//
// # Invariants
//
//  1. Equal sets of Leases give equal views, whatever the order in which they were seen.
//  2. Every available name belongs to exactly one Lease and is a valid, non-empty label value.
//  3. The renewal of a Lease changes no view.
type View struct {
	ringName  string
	shards    []Shard  // sorted by name, then namespace
	available []string // sorted
	table     func() *hashring.Table
}

// NewView returns the view of the ring with the given name. Leases that do not carry the ring's label are left out. The
// hash ring is taken from rings when it is first needed, or built for this view alone if rings is nil. It keeps none of
// the Leases.
func NewView(ringName string, leases []*coordinationv1.Lease, rings *hashring.Cache) *View {
	var shards []Shard
	for _, l := range leases {
		if name := l.Labels[v1alpha1.LabelClusterRing]; name != "" && name == ringName {
			shards = append(shards, shardOf(l))
		}
	}
	return newView(ringName, shards, rings)
}

// newView completes and keeps the given shards, which shardOf has made.
func newView(ringName string, shards []Shard, rings *hashring.Cache) *View {
	slices.SortFunc(shards, func(a, b Shard) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Namespace, b.Namespace))
	})
	available := judge(shards)
	build := hashring.New
	if rings != nil {
		build = rings.Get
	}
	return &View{
		ringName:  ringName,
		shards:    shards,
		available: available,
		table:     sync.OnceValue(func() *hashring.Table { return build(available) }),
	}
}

// shardOf returns what a Lease says for itself; judge fills in what depends on others.
func shardOf(l *coordinationv1.Lease) Shard {
	record := lease.RecordOf(l)
	return Shard{Namespace: l.Namespace, Name: l.Name, UID: l.UID, Holder: record.Holder, Duration: record.Duration}
}

// SameShard reports whether two states of one Lease say the same of a ring's shards: a renewal changes nothing.
func SameShard(a, b *coordinationv1.Lease) bool {
	return a.Labels[v1alpha1.LabelClusterRing] == b.Labels[v1alpha1.LabelClusterRing] && shardOf(a) == shardOf(b)
}

// MaxShards is how many shards of a ring may be available. A table of so many takes two tenths of a second to build, in every replica of
// every service, and a list that names them all some 300 kB; a ring should stay far below. What is beyond is not available, the last
// ones by name: as all else, this follows from the set of Leases alone.
const MaxShards = 5000

// judge decides about each of the sorted shards whether it is available, and returns the names of those that are.
func judge(shards []Shard) (available []string) {
	for start := 0; start < len(shards); {
		end := start + 1
		for end < len(shards) && shards[end].Name == shards[start].Name {
			end++
		}
		switch is := judgeName(shards[start:end]); {
		case is && len(available) == MaxShards:
			refuse(shards[start:end])
		case is:
			available = append(available, shards[start].Name)
		}
		start = end
	}
	return available
}

// refuse makes a shard unavailable that would be one too many.
func refuse(shards []Shard) {
	for i := range shards {
		if shards[i].Available {
			shards[i].Available = false
			shards[i].Problem = fmt.Sprintf("a ring has at most %d shards, in the order of their names: shard the objects by several rings", MaxShards)
		}
	}
}

// judgeName does so for all shards of one name, of which at most one can be available.
func judgeName(shards []Shard) (available bool) {
	var held []int
	var namespaces []string
	for i, s := range shards {
		if (lease.Record{Holder: s.Holder}).HeldBy(s.Name) {
			held, namespaces = append(held, i), append(namespaces, s.Namespace)
		}
	}
	for _, i := range held {
		shards[i].Problem = problem(shards[i], namespaces)
		shards[i].Available = shards[i].Problem == ""
		available = available || shards[i].Available
	}
	return available
}

// problem says why the shard, which holds its Lease, is not available, or nothing if it is. The namespaces are all
// those in which its name is held.
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

// RingName returns the name of the ClusterRing.
func (v *View) RingName() string { return v.ringName }

// Shards returns all shards, sorted by name, then namespace. The slice is the caller's.
func (v *View) Shards() []Shard { return slices.Clone(v.shards) }

// Available says whether the shard may own objects.
func (v *View) Available(shard string) bool {
	_, ok := slices.BinarySearch(v.available, shard)
	return ok
}

// AvailableShards returns the names of all shards that may own objects, sorted. The slice is the caller's.
func (v *View) AvailableShards() []string { return slices.Clone(v.available) }

// Owner returns the available shard that the ring gives the key to, or ok false if none is available.
func (v *View) Owner(k key.Key) (shard string, ok bool) { return v.Table().Owner(k.Hash()) }

// Table returns the table of the available shards, which is built by the first call for them.
func (v *View) Table() *hashring.Table { return v.table() }

// Fingerprint returns that of the hash ring: it is equal wherever the set of available shards is.
func (v *View) Fingerprint() string { return v.Table().Fingerprint() }

// Problems returns a message for people about every shard that has a problem, beginning with namespace/name; in order
// of the shards.
func (v *View) Problems() []string {
	var problems []string
	for _, s := range v.shards {
		if s.Problem != "" {
			problems = append(problems, fmt.Sprintf("shard %s/%s: %s", s.Namespace, s.Name, s.Problem))
		}
	}
	return problems
}
