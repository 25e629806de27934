package membership

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/clusterring/clusterring/services/internal/hashring"
	"github.com/clusterring/clusterring/services/internal/key"
)

// scopes are what a view knows about working shards that watch some namespaces only; nil if there is none.
type scopes struct {
	only map[string]sets.Set[string] // the namespaces of each such shard
	// tables are those of the namespaces that any of these shards watches, and that of all others.
	tables map[string]func() *hashring.Table
}

// others stands for the namespaces that none of these shards watches. No namespace has this name.
const others = "/"

// scope determines the scopes of a view that is otherwise complete. Tables are taken from build when they are first
// needed.
func (v *View) scope(build func([]string) *hashring.Table) {
	all := scopes{only: map[string]sets.Set[string]{}, tables: map[string]func() *hashring.Table{}}

	for _, s := range v.shards {
		if s.Watches != "" && v.Works(s.Name) && s.Holder == s.Name {
			all.only[s.Name] = sets.New(strings.Split(s.Watches, ",")...)
		}
	}

	if len(all.only) == 0 {
		return
	}

	of := func(namespace string) func() *hashring.Table {
		return sync.OnceValue(func() *hashring.Table {
			return build(slices.DeleteFunc(v.AvailableShards(), func(name string) bool { return !v.Watches(name, namespace) }))
		})
	}

	for _, namespaces := range all.only {
		for namespace := range namespaces {
			if all.tables[namespace] == nil {
				all.tables[namespace] = of(namespace)
			}
		}
	}

	all.tables[others] = of(others)
	v.scopes = &all
}

// names returns what the fingerprint is about: the available shards, the namespaces of working shards that do not watch
// all, and whether planned moves are paused. No shard has a name with a slash.
func (v *View) names() []string {
	names := slices.Clone(v.available)
	if v.rules.Paused {
		names = append(names, "/paused")
	}

	if v.scopes != nil {
		for shard, namespaces := range v.scopes.only {
			names = append(names, shard+"/"+strings.Join(sets.List(namespaces), ","))
		}
	}

	return names
}

// Restricted reports whether a shard works that does not watch all namespaces.
func (v *View) Restricted() bool { return v.scopes != nil }

// Watches reports whether the shard, if it works, watches the ring's resources in the namespace. All shards watch
// cluster-scoped objects, whose namespace is empty.
func (v *View) Watches(shard, namespace string) bool {
	if v.scopes == nil || namespace == "" {
		return true
	}

	only, restricted := v.scopes.only[shard]

	return !restricted || only.Has(namespace)
}

// Watched reports whether an available shard watches the namespace.
func (v *View) Watched(namespace string) bool {
	return slices.ContainsFunc(v.available, func(shard string) bool { return v.Watches(shard, namespace) })
}

// TableIn returns the table of the available shards that watch the namespace, as for [View.Watches]. The first call for
// a set of shards builds it.
func (v *View) TableIn(namespace string) *hashring.Table {
	if v.scopes == nil || namespace == "" {
		return v.Table()
	}

	if table, named := v.scopes.tables[namespace]; named {
		return table()
	}

	return v.scopes.tables[others]()
}

// OwnerIn returns the available shard that owns the key of an object in the namespace, or of one that follows an object
// there. ok is false if no shard is available that watches the namespace.
func (v *View) OwnerIn(namespace string, k key.Key) (shard string, ok bool) {
	return v.TableIn(namespace).Owner(k.Hash())
}

// Place returns the shard that an object belongs to. This is [View.OwnerIn], unless planned moves are paused: then, an
// object stays at its shard if that is available or stands by, and watches the namespace.
func (v *View) Place(namespace string, k key.Key, shard string) (belongs string, ok bool) {
	if v.rules.Paused && v.Watches(shard, namespace) && (v.Available(shard) || slices.Contains(v.StandbyShards(), shard)) {
		return shard, true
	}

	return v.OwnerIn(namespace, k)
}

// Paused reports whether planned moves are paused: an object may be elsewhere than its key says.
func (v *View) Paused() bool { return v.rules.Paused }

// Space is a view of one namespace.
type Space struct {
	view      *View
	namespace string
}

// In returns the view of a namespace; empty for cluster-scoped objects.
func (v *View) In(namespace string) Space { return Space{v, namespace} }

// Works reports whether the shard may work on objects in the namespace: see [View.Works] and [View.Watches].
func (s Space) Works(shard string) bool {
	return s.view.Works(shard) && s.view.Watches(shard, s.namespace)
}

// Restrictions says which working shards watch which namespaces only: one text for each set of namespaces, sorted, and
// not more than a few. Each names a few of either.
func (v *View) Restrictions() (texts []string) {
	if v.scopes == nil {
		return nil
	}

	shards := map[string][]string{}

	for _, name := range slices.Sorted(maps.Keys(v.scopes.only)) {
		of := Few(sets.List(v.scopes.only[name]))
		shards[of] = append(shards[of], name)
	}

	for _, of := range slices.Sorted(maps.Keys(shards)) {
		if texts = append(texts, fmt.Sprintf("shards that watch only the namespaces %s: %s", of,
			Few(shards[of]))); len(texts) == few {
			break
		}
	}

	return texts
}

// few is how many of the same kind a text names.
const few = 5

// Few names the first few of many.
func Few(names []string) string {
	if more := len(names) - few; more > 0 {
		return strings.Join(names[:few], ", ") + fmt.Sprintf(" and %d more", more)
	}

	return strings.Join(names, ", ")
}

// RunBy returns the available shard that the Pod runs: a shard is named like its Pod, or its Lease names the Pod. The
// Lease is in the namespace of the Pod. ok is false if the Pod runs no available shard, or several that work. The first
// call for a view builds an index.
func (v *View) RunBy(pod types.NamespacedName) (shard string, ok bool) {
	shard = v.byPod()[pod]

	return shard, shard != "" && v.Available(shard)
}

// pods returns the working shards by the Pods that run them.
func (v *View) pods() map[types.NamespacedName]string {
	all := make(map[types.NamespacedName]string, len(v.working))

	for _, s := range v.shards {
		if s.Holder != s.Name || !v.Works(s.Name) { // of several Leases with one name, that of the shard that works is held
			continue
		}

		pod := types.NamespacedName{Namespace: s.Namespace, Name: cmp.Or(s.Pod, s.Name)}

		shard := s.Name
		if _, several := all[pod]; several {
			shard = ""
		}

		all[pod] = shard
	}

	return all
}
