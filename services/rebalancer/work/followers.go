package work

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
	// perList is the cost of a list without objects.
	perList = 2 * time.Millisecond
	// withoutThem is how long an object waits for a resource that cannot be listed, for objects of which nobody can find
	// out what they follow, and until all objects without a shard have been seen. After that, it moves without them,
	// because a shard has to work on the object.
	withoutThem = 10 * time.Second
	// drainsWait is how long no object is drained at most because a shard stops and the followers are not watched yet.
	drainsWait = time.Second
	// maxIndexed is the number of followers that a watch remembers.
	maxIndexed = 20_000
	// fewNamespaces is the number of namespaces up to which each is watched separately: a list costs the API server a
	// millisecond, and a list of a million objects costs as much as a pass.
	fewNamespaces = 100
)

// PerObject is the cost of listing one object, for the API server and the rebalancer: see docs/performance.md.
const PerObject = 25 * time.Microsecond

// Place is where a watch of followers looks: for objects of a resource, in a namespace; empty for all namespaces.
type Place struct {
	Of        schema.GroupResource
	Namespace string
}

// followers determines where objects that follow others are watched, and knows what these watches have proven. A watch
// is opened when an object is about to wait for its followers: its first list finds them. It is closed when no object
// has needed it for followersFor.
//
// A watch may be late, and the versions of two resources cannot be compared. The proof that it has shown every follower
// of an object is a list that began after the object was known to be without a shard, or a write of the engine itself:
// the write of any object of the watched resource that began after that. When the watch has shown that write, it has
// shown everything that was created before.
type followers struct {
	// of are the resources whose objects may follow others.
	of []resources.Resource
	// begun is the number of the last family that has begun to seek its followers.
	begun int
	// needed contains, by namespace, when the followers of objects were needed last; "" are cluster-scoped objects, or
	// all.
	needed  map[string]time.Time
	watches map[Place]*Watch
	// news reports whether something has changed that [Table.Seek] considers. next is when it is called without.
	news bool
	next timer
}

// Controlled sets the resources whose objects may follow others. If a shard stops, no object is drained until all
// followers are watched: an object that is released earlier would be without a shard until a watch has listed them.
// That takes a second at most, because the shard waits for its drains for three.
func (t *Table) Controlled(now time.Time, of []resources.Resource, stops bool) {
	t.followers.of, t.followers.news = of, true

	for _, e := range sorted(maps.Values(t.entries)) {
		t.follow(e, t.lineage(e.object))
		t.expedite(e)
	}

	if stops && len(of) > 0 {
		if t.followers.needed[""] = now; !t.followers.listed() {
			t.set(&t.paused, now.Add(drainsWait), t.grantNext)
		}
	}
}

// News reports whether [Table.Seek] has to be called, because something has changed since the last call of News.
func (t *Table) News() (news bool) {
	news, t.followers.news = t.followers.news, false

	return news
}

// Seek finds the followers of families. It recalls what watches have shown before, and records the families of which
// all followers have been shown. It returns where followers have to be watched now, and which watches have to list
// again, because nothing proves that they have shown everything. few reports whether the ring is known to have few
// objects, so that all namespaces are watched at once. seen reports whether all objects without a shard have been seen
// that may follow others: they are in no watch.
func (t *Table) Seek(now time.Time, few, seen bool) (watched map[Place]resources.Resource, again []Place) {
	defer t.check()

	t.stop(&t.followers.next)

	for _, f := range t.sought(seeking) {
		t.followers.needed[f.owner.object.Namespace] = now

		if f.since.IsZero() {
			f.since = now
			t.recall(now, f.owner.object, contract.MaxDepth)
		}

		without := now.Sub(f.since) >= withoutThem
		lists, all := t.shown(now, f, without)
		again = append(again, lists...)

		if all && f.state == seeking && (without || seen || t.Full()) { // it is idle if one that was recalled found no room
			f.state = found
			t.reunite(f.owner.object.UID)
		} else {
			t.seekBy(now.Add(proofWithin))
		}
	}

	if t.followers.listed() && t.stop(&t.paused) {
		t.grantNext(now)
	}

	return t.wanted(now, few), again
}

// shown reports whether watches have shown all followers of a family, except those that fail, or of which something
// could not be used, if without is set. It returns the watches that have to list again.
func (t *Table) shown(now time.Time, f *family, without bool) (again []Place, all bool) {
	all = true

	for _, r := range t.followers.of {
		at, w := t.followers.over(r, f.owner.object.Namespace)
		if w != nil && (w.proven >= f.number || without && (w.failing || w.missed)) {
			continue
		}

		if all = false; w == nil || w.listing {
			continue
		}

		if next := w.again(f.since, t.Ready() > 0); next.After(now) {
			t.seekBy(next)
		} else {
			w.listing = true

			again = append(again, at)
		}
	}

	return again, all
}

// wanted returns where followers have to be watched now.
func (t *Table) wanted(now time.Time, few bool) map[Place]resources.Resource {
	f, all := &t.followers, map[Place]resources.Resource{}

	maps.DeleteFunc(f.needed, func(_ string, at time.Time) bool { return now.Sub(at) >= followersFor })

	_, everywhere := f.needed[""]
	everywhere = everywhere || few || len(f.needed) > fewNamespaces

	for namespace, at := range f.needed {
		t.seekBy(at.Add(followersFor))

		for _, r := range f.of {
			place := Place{r.GroupResource(), namespace}
			if everywhere || !r.Namespaced {
				place.Namespace = ""
			}

			all[place] = r
		}
	}

	return all
}

// seekBy makes [Table.Seek] be called at a time at the latest.
func (t *Table) seekBy(at time.Time) {
	if f := &t.followers; !f.next.isSet() || at.Before(f.next.at) {
		t.set(&f.next, at, func(time.Time) { f.news = true })
	}
}

// Watch returns the watch at a place, which is open from now on.
func (t *Table) Watch(at Place) *Watch {
	if t.followers.watches[at] == nil {
		t.followers.watches[at] = &Watch{t: t, listing: true}
	}

	return t.followers.watches[at]
}

// Unwatch records that the watch at a place is closed.
func (t *Table) Unwatch(at Place) { delete(t.followers.watches, at) }

// wrote records how an object is since a write by the worker that has the obligation: a list that has begun before may
// still show it as it was.
func (t *Table) wrote(e *entry, out Outcome) {
	for at, w := range t.followers.watches {
		if at.Of != e.lane.of {
			continue
		}

		if o := out.Object; o != nil && o.Labelled && (at.Namespace == "" || at.Namespace == o.Namespace) {
			w.show(*o)
		}

		if out.Version != "" {
			w.wrote(e.begun, out.Version)
		}
	}
}

// recall enqueues what follows an object, as far as watches remember it. What is in its place reports its version, for
// the hand-over. Users may make objects control each other in a circle. Therefore, it goes down only as far as objects
// can follow others.
func (t *Table) recall(now time.Time, owner feed.Object, levels int) {
	if levels == 0 {
		return
	}

	above := owner.Lineage()

	for _, o := range t.followers.below(owner.UID) {
		copy(o.Above[:], above[:])

		t.Find(now, o)
		t.recall(now, o, levels-1)
	}
}

// below returns the objects that the object with this UID controls, as far as watches remember them, in a deterministic
// order.
func (f *followers) below(uid types.UID) (all []feed.Object) {
	for _, w := range f.watches {
		for id := range w.index[uid] {
			all = append(all, w.objects[id])
		}
	}

	// A resource that is served in another version now is about to be watched in that version.
	all = slices.DeleteFunc(all, func(o feed.Object) bool {
		return !slices.ContainsFunc(f.of, func(r resources.Resource) bool { return r.GVR == o.GVR })
	})

	slices.SortFunc(all, func(a, b feed.Object) int { return feed.Compare(a.ID, b.ID) })

	return all
}

// over returns the watch that shows what follows objects of a namespace, and its place; nil if it is not open.
func (f *followers) over(r resources.Resource, namespace string) (Place, *Watch) {
	at := Place{Of: r.GroupResource()}
	if f.watches[at] == nil {
		at.Namespace = namespace
	}

	return at, f.watches[at]
}

// listed reports whether all namespaces are watched at once, and have been listed.
func (f *followers) listed() bool { return f.each("", func(w *Watch) bool { return !w.listing }) }

// indexed reports whether watches remember, or are about to, all objects that follow objects of a namespace.
func (f *followers) indexed(namespace string) bool {
	return f.each(namespace, func(w *Watch) bool { return w.index != nil })
}

// each reports whether all watches for objects of a namespace are open, and something holds for each.
func (f *followers) each(namespace string, holds func(*Watch) bool) bool {
	return !slices.ContainsFunc(f.of, func(r resources.Resource) bool {
		_, w := f.over(r, namespace)

		return w == nil || !holds(w)
	})
}

// Watch is what a watch of followers has shown. See [Table.Watch].
type Watch struct {
	t *Table
	// objects are those with controllers that the watch shows now, and index are their IDs by the UIDs of their
	// controllers. They are nil if there are too many. Then, only lists find what follows an object.
	objects map[feed.ID]feed.Object
	index   index[feed.ID]
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

// Begin records that a list begins.
func (w *Watch) Begin() {
	*w = Watch{
		t: w.t, objects: map[feed.ID]feed.Object{}, index: index[feed.ID]{},
		listing: true, since: w.t.followers.begun, proven: w.proven, failing: w.failing,
	}
}

// Listed records that the list is complete.
func (w *Watch) Listed(now time.Time) {
	if w.listing, w.listed, w.t.followers.news = false, now, true; !w.missed {
		w.proven = max(w.proven, w.since)
	}
}

// Failed records whether the watch cannot be read.
func (w *Watch) Failed(failing bool) { w.failing, w.t.followers.news = failing, true }

// Show records that the watch has shown an object, or that it is gone; then, o has no controller. It returns false if
// no family can be waiting for the object, or if the object is known in a later version: a list may show objects as
// they were when it began.
func (w *Watch) Show(o feed.Object) bool {
	if w.listing {
		w.seen++
	}

	return w.show(o) && len(w.t.families) > 0
}

// Reached records that the watch has reached a version, and whether something up to there could not be used.
func (w *Watch) Reached(version string, missed bool) {
	if w.missed = w.missed || missed; !w.listing {
		w.position = version
		w.prove()
	}
}

func (w *Watch) show(o feed.Object) bool {
	before, known := w.objects[o.ID]

	switch {
	case known && feed.Older(o.ResourceVersion, before.ResourceVersion):
		return false
	case known:
		w.index.remove(before.Controller.UID, o.ID)
		delete(w.objects, o.ID)
	}

	switch {
	case o.Controller == nil || w.index == nil:
	case len(w.objects) >= maxIndexed:
		w.objects, w.index = nil, nil
	default:
		w.index.insert(o.Controller.UID, o.ID)
		w.objects[o.ID] = o
	}

	return true
}

// wrote records a proof.
func (w *Watch) wrote(begun int, version string) {
	earlier := func(p proof) bool { return p.begun >= begun }
	if w.listing || begun <= w.proven || slices.ContainsFunc(w.proofs, earlier) {
		return
	}

	w.proofs = append(w.proofs, proof{begun, version})
	w.prove()
}

// prove uses the proofs that the watch has shown. Without an index, they prove nothing: nothing remembers what the
// watch has shown before a family began.
func (w *Watch) prove() {
	if w.missed || w.index == nil || w.position == "" {
		return
	}

	w.proofs = slices.DeleteFunc(w.proofs, func(p proof) bool {
		shown := !feed.Older(w.position, p.version)
		if shown && p.begun > w.proven {
			w.proven, w.t.followers.news = p.begun, true
		}

		return shown
	})
}

// again returns when the watch has to list again, for a family that seeks since a time.
func (w *Watch) again(since time.Time, busy bool) time.Time {
	cost := perList + time.Duration(w.seen)*PerObject
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
