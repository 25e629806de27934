package work

import (
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/services/internal/invariants"
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
	// withoutThem is how long an object waits for a resource that cannot be listed, or whose objects without a shard have
	// not all been seen yet. After that, it moves without them, because a shard has to work on the object.
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

// followers determines where objects that follow others are watched, and knows what these watches have proven. A watch is
// opened when an object is about to wait for its followers: its first list finds them. It is closed when no object has
// needed it for followersFor.
//
// A watch may be late, and the versions of two resources cannot be compared. The proof that it has shown every follower of
// an object is a list that began after the object was known to be without a shard, or a write of the engine itself: the
// write of any object of the watched resource that began after that. When the watch has shown that write, it has shown
// everything that was created before.
type followers struct {
	// of are the resources whose objects may follow others.
	of []resources.Resource
	// begun is the number of the last family that has begun to seek its followers.
	begun int
	// needed contains, by namespace, when the followers of objects were needed last; "" are cluster-scoped objects, or all.
	needed  map[string]time.Time
	watches map[Place]*Watch
	// news reports whether something has changed that [Table.Watched] or [Table.Find] considers.
	news bool
}

// Controlled sets the resources whose objects may follow others. If a shard stops, no object is drained until all
// followers are watched: an object that is released earlier would be without a shard until a watch has listed them. That
// takes a second at most, because the shard waits for its drains for three.
func (t *Table) Controlled(now time.Time, of []resources.Resource, stops bool) {
	t.followers.of, t.followers.news = of, true

	if stops && len(of) > 0 {
		if t.followers.needed[""] = now; !t.followers.everywhere() {
			t.Pause(now, now.Add(drainsWait))
		}
	}
}

// News reports whether [Table.Watched] and [Table.Find] have to be called, because something has changed since the last call
// of News.
func (t *Table) News() (news bool) {
	news, t.followers.news = t.followers.news, false

	return news
}

// Watched returns where followers have to be watched now, and when one of these watches may end to be needed; zero if there
// are none. few reports whether the ring is known to have few objects, so that all namespaces are watched at once.
func (t *Table) Watched(now time.Time, few bool) (all map[Place]resources.Resource, until time.Time) {
	f := &t.followers
	all = map[Place]resources.Resource{}

	for _, seeking := range t.sought(seeking) {
		f.needed[seeking.owner.object.Namespace] = now
	}

	maps.DeleteFunc(f.needed, func(_ string, at time.Time) bool { return now.Sub(at) >= followersFor })

	for _, at := range f.needed {
		until = earlier(until, at.Add(followersFor))
	}

	_, everywhere := f.needed[""]
	everywhere = everywhere || few || len(f.needed) > fewNamespaces

	for _, r := range f.of {
		for namespace := range f.needed {
			if everywhere || !r.Namespaced {
				namespace = ""
			}

			all[Place{r.GroupResource(), namespace}] = r
		}
	}

	return all, until
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

// Begun returns how many families have begun to seek their followers, for [Table.Wrote].
func (t *Table) Begun() int { return t.followers.begun }

// Wrote records a write of the engine to an object of a resource, and the version of the object since. The write began when
// a number of families had begun.
func (t *Table) Wrote(of schema.GroupResource, begun int, version string) {
	for at, w := range t.followers.watches {
		if at.Of == of {
			w.wrote(begun, version)
		}
	}
}

// Find finds the followers of families. It recalls what watches have shown before, and records the families of which all
// followers have been shown. It returns the watches that have to list again, because nothing proves that they have shown
// everything, and when to ask again, unless there are news before; zero if never. seen reports whether all objects without a
// shard have been seen that may follow others: they are in no watch.
func (t *Table) Find(now time.Time, seen bool) (lists []Place, next time.Time) {
	if invariants.Enabled {
		defer t.check()
	}

	for _, f := range t.sought(seeking) {
		if f.since.IsZero() {
			f.since = now
		}

		if !f.recalled {
			f.recalled = true
			owner := f.owner.object
			owner.UID = f.uid // the owner's worker may have read another object of that name
			t.recall(now, owner, contract.MaxDepth)
		}

		again, at, all := t.shown(now, f)
		lists = append(lists, again...)

		if without := now.Sub(f.since) >= withoutThem; all && (without || seen || t.Full()) {
			f.state = found
			t.reunite(f.uid)
		} else {
			next = earlier(earlier(next, at), now.Add(proofWithin))
		}
	}

	if t.followers.everywhere() {
		t.Pause(now, time.Time{})
	}

	return lists, next
}

// shown reports whether watches have shown all followers of a family. It returns those that have to list again, and when the
// next one has to; zero if none.
func (t *Table) shown(now time.Time, f *family) (lists []Place, next time.Time, all bool) {
	all = true

	for _, r := range t.followers.of {
		at, w := t.followers.over(r, f.owner.object.Namespace)
		if w != nil && (w.proven >= f.number || w.failing && now.Sub(f.since) >= withoutThem) {
			continue
		}

		if all = false; w == nil || w.listing {
			continue
		}

		if again := w.again(f.since, t.Ready() > 0); again.After(now) {
			next = earlier(next, again)
		} else {
			w.listing = true

			lists = append(lists, at)
		}
	}

	return lists, next, all
}

// recall enqueues what follows an object, as far as watches remember it. What is in its place reports its version, for the
// hand-over. Users may make objects control each other in a circle. Therefore, it goes down only as far as objects can
// follow others.
func (t *Table) recall(now time.Time, owner feed.Object, levels int) {
	if levels == 0 {
		return
	}

	above := owner.Lineage()

	for _, o := range t.followers.below(owner.UID) {
		copy(o.Above[:], above[:])

		_, known := t.entries[o.ID]
		t.See(now, o, false)

		if o.Draining && !known {
			t.Doubt(o.ID)
		}

		t.recall(now, o, levels-1)
	}
}

// below returns the objects that the object with this UID controls, as far as watches remember them, in a deterministic order.
func (f *followers) below(uid types.UID) (all []feed.Object) {
	for _, w := range f.watches {
		all = slices.AppendSeq(all, maps.Values(w.index[uid]))
	}

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

// everywhere reports whether all namespaces are watched at once, and have been listed.
func (f *followers) everywhere() bool {
	return !slices.ContainsFunc(f.of, func(r resources.Resource) bool {
		_, w := f.over(r, "")

		return w == nil || w.listing
	})
}

// indexed reports whether watches remember, or are about to, all objects that follow objects of a namespace.
func (f *followers) indexed(namespace string) bool {
	return !slices.ContainsFunc(f.of, func(r resources.Resource) bool {
		_, w := f.over(r, namespace)

		return w == nil || w.index == nil
	})
}

// need opens the watches of what follows an object that is about to lose its shard.
func (f *followers) need(now time.Time, id feed.ID) { f.needed[id.Namespace], f.news = now, true }

// note records how an object is since a write of the engine: a list that has begun before may still show it as it was.
func (f *followers) note(o feed.Object) {
	for at, w := range f.watches {
		if at.Of == o.GVR.GroupResource() && (at.Namespace == "" || at.Namespace == o.Namespace) && o.Labelled {
			w.show(o)
		}
	}
}

// earlier returns the earlier of two times. Zero is never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}

	return a
}
