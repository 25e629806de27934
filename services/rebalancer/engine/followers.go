package engine

import (
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/rebalancer/feed"
)

const (
	// followersFor is how long a watch of followers stays open after the last object has needed it.
	followersFor = 10 * time.Second
	// proofWithin is how long an object waits at most for the proof that a watch has shown all its followers, before the
	// watch begins with another list. Where nothing moves but new objects come, there is no write that could prove it.
	// Therefore, it waits no longer than a list is worth: proofShare times its cost, busyShare times while every worker is
	// busy. A watch does not list again before its last list has been over for as long as that list has cost; for
	// busyShare times as long while every worker is busy.
	proofWithin = 250 * time.Millisecond
	proofShare  = 3
	busyShare   = 16
	// perList is the cost of a list without objects, perObject of each object.
	perList = 2 * time.Millisecond
	// withoutThem is how long an object waits for a resource that cannot be listed, or whose objects without a shard have
	// not all been seen yet. After that, it moves without them, because a shard has to work on the object.
	withoutThem = 10 * time.Second
	// drainsWait is how long no object is drained at most because a shard stops and the followers are not watched yet.
	drainsWait = time.Second
	// fewObjects is the number of objects of a ring up to which all namespaces are watched at once, and the number of
	// followers that a watch remembers.
	fewObjects = 20_000
	// fewNamespaces is the number of namespaces up to which each is watched separately: a list costs the API server a
	// millisecond, and a list of a million objects costs as much as a pass.
	fewNamespaces = 100
)

// followers decides where objects that follow others are watched, and knows what these watches have proven. A watch is
// opened when an object is about to wait for its followers: its first list finds them. It is closed when no object has
// needed it for followersFor.
//
// A watch may be late, and the versions of two resources cannot be compared. The proof that it has shown every follower of
// an object is a list that began after the object was known to be without a shard, or a write of the engine itself: the
// write of any object of the watched resource that began after that. When the watch has shown that write, it has shown
// everything that was created before.
type followers struct {
	// begun is the number of the last family that has begun to wait for its followers.
	begun int
	// needed contains, by namespace, when the followers of objects were needed last; "" are cluster-scoped objects, or all.
	needed  map[string]time.Time
	watches map[sourceID]*watch
}

func newFollowers() followers {
	return followers{needed: map[string]time.Time{}, watches: map[sourceID]*watch{}}
}

// wanted returns the watches that are needed now, and when one of them may end to be needed; zero if there are none.
func (f *followers) wanted(now time.Time, of []resources.Resource, few bool) (all map[sourceID]resources.Resource, until time.Time) {
	all = map[sourceID]resources.Resource{}

	maps.DeleteFunc(f.needed, func(_ string, at time.Time) bool { return now.Sub(at) >= followersFor })

	for _, at := range f.needed {
		if end := at.Add(followersFor); until.IsZero() || end.Before(until) {
			until = end
		}
	}

	_, everywhere := f.needed[""]
	everywhere = everywhere || few || len(f.needed) > fewNamespaces

	for _, r := range of {
		for namespace := range f.needed {
			if everywhere || !r.Namespaced {
				namespace = ""
			}

			all[idOf(forFollowers, r).in(namespace)] = r
		}
	}

	return all, until
}

// at returns which watch shows what follows objects of a namespace. over returns that watch; nil if it is not open.
func (f *followers) at(r resources.Resource, namespace string) sourceID {
	if everywhere := idOf(forFollowers, r); f.watches[everywhere] != nil {
		return everywhere
	}

	return idOf(forFollowers, r).in(namespace)
}

func (f *followers) over(r resources.Resource, namespace string) *watch {
	return f.watches[f.at(r, namespace)]
}

// complete reports whether all watches for the objects of a namespace are open and have completed their lists. Watches that
// fail do not count if without is set.
func (f *followers) complete(of []resources.Resource, namespace string, without bool) bool {
	return !slices.ContainsFunc(of, func(r resources.Resource) bool {
		w := f.over(r, namespace)

		return w == nil || w.listing && (!without || !w.failing)
	})
}

// indexed reports whether watches remember, or are about to, all objects that follow objects of a namespace.
func (f *followers) indexed(of []resources.Resource, namespace string) bool {
	return !slices.ContainsFunc(of, func(r resources.Resource) bool {
		w := f.over(r, namespace)

		return w == nil || w.index == nil
	})
}

// below returns the objects that follow the object with this UID, as far as watches remember them. Users may make objects
// control each other in a circle. Therefore, it goes down only as far as objects can follow others.
func (f *followers) below(uid types.UID) []feed.Object { return f.levels(uid, contract.MaxDepth) }

func (f *followers) levels(uid types.UID, n int) (all []feed.Object) {
	if n == 0 {
		return nil
	}

	for _, w := range f.watches {
		for _, o := range w.index[uid] {
			all = append(append(all, o), f.levels(o.UID, n-1)...)
		}
	}

	slices.SortFunc(all, func(a, b feed.Object) int { return feed.Compare(a.ID, b.ID) }) // a random order could not be replayed

	return all
}

// wrote records a write of the engine to an object of a resource, and the version of the object since. The write began when
// a number of families had begun. It reports whether that proves anything new.
func (f *followers) wrote(of schema.GroupResource, begun int, version string) (news bool) {
	for id, w := range f.watches {
		if id.resource == of {
			news = w.wrote(begun, version) || news
		}
	}

	return news
}

// note records how an object is since a write of the engine: a list that has begun before may still show it as it was.
func (f *followers) note(o feed.Object) {
	for id, w := range f.watches {
		if id.resource == o.GVR.GroupResource() && (id.namespace == "" || id.namespace == o.Namespace) && o.Labelled {
			w.show(o)
		}
	}
}

// watch is what a watch of followers has shown.
type watch struct {
	// index contains the objects that the watch shows now, by the UIDs of their controllers; controllers is the reverse. They
	// are nil if there are too many. Then, only lists find what follows an object.
	index       map[types.UID]map[feed.ID]feed.Object
	controllers map[feed.ID]types.UID
	// listing reports whether a list is requested or in progress. since is the number of families when it began.
	listing bool
	since   int
	// position is the version that the watch has reached after the list.
	position string
	// proofs are writes that the watch has not shown yet. proven is the last family whose followers have all been shown.
	proofs []proof
	proven int
	// missed reports whether something that was shown could not be used. Then, only the next list proves something.
	missed bool
	// failing reports whether it cannot be read.
	failing bool
	// seen is the number of objects in the last list, and listed is when it ended.
	seen   int
	listed time.Time
}

// proof is a write to a resource. It began when begun families waited.
type proof struct {
	begun   int
	version string
}

// begin records that a list begins when a number of families wait.
func (w *watch) begin(begun int) {
	*w = watch{
		index: map[types.UID]map[feed.ID]feed.Object{}, controllers: map[feed.ID]types.UID{},
		listing: true, since: begun, proven: w.proven, failing: w.failing,
	}
}

// end records that the list is complete.
func (w *watch) end(now time.Time) {
	if w.listing, w.listed = false, now; !w.missed {
		w.proven = max(w.proven, w.since)
	}
}

// show records that the watch has shown an object, or that it is gone; then, o has no controller. It returns false if the
// object is known in a later version: a list may show objects as they were when it began.
func (w *watch) show(o feed.Object) bool {
	before, known := w.controllers[o.ID]
	if known && feed.Older(o.ResourceVersion, w.index[before][o.ID].ResourceVersion) {
		return false
	}

	if known {
		if delete(w.index[before], o.ID); len(w.index[before]) == 0 {
			delete(w.index, before)
		}

		delete(w.controllers, o.ID)
	}

	switch {
	case o.Controller == nil || w.index == nil:
		return true
	case len(w.controllers) >= fewObjects:
		w.index, w.controllers = nil, nil
		return true
	}

	uid := o.Controller.UID
	if w.index[uid] == nil {
		w.index[uid] = map[feed.ID]feed.Object{}
	}

	w.index[uid][o.ID], w.controllers[o.ID] = o, uid

	return true
}

// wrote records a proof. It reports whether it proves anything new already.
func (w *watch) wrote(begun int, version string) (news bool) {
	earlier := func(p proof) bool { return p.begun >= begun }
	if w.listing || begun <= w.proven || slices.ContainsFunc(w.proofs, earlier) {
		return false
	}

	w.proofs = append(w.proofs, proof{begun, version})

	return w.position != "" && w.reach(w.position)
}

// reach records the position of the watch, and reports whether that proves anything new.
func (w *watch) reach(version string) (news bool) {
	if w.listing || w.missed {
		return false
	}

	w.position = version
	w.proofs = slices.DeleteFunc(w.proofs, func(p proof) bool {
		shown := !feed.Older(version, p.version)
		if shown && p.begun > w.proven {
			w.proven, news = p.begun, true
		}

		return shown
	})

	return news
}

// again returns when the watch has to list again, for a family that has waited for a proof since a time.
func (w *watch) again(since time.Time, busy bool) time.Time {
	cost := perList + time.Duration(w.seen)*perObject
	next, patience := w.listed.Add(cost), proofShare*cost

	if busy {
		next, patience = w.listed.Add(busyShare*cost), busyShare*cost
	}

	if w.index == nil || w.failing {
		return next // no watch will show a proof, or what it proves is not remembered
	}

	if proof := since.Add(min(proofWithin, patience)); proof.After(next) {
		return proof
	}

	return next
}
