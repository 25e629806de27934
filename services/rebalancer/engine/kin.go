package engine

import (
	"context"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/rebalancer/feed"
)

const (
	// kinFor is how long the controlled resources are watched after the last object has waited for its followers.
	kinFor = 10 * time.Second
	// kinWithin is how long the lists may take with which the watches begin, until a search begins that may be faster.
	kinWithin = 5 * time.Second
	// proofWithin is how long an object waits at most for the proof that the watch has shown all its followers, before a search begins. Where
	// nothing moves but new objects come, there is no write that could prove it. Therefore, it waits no longer than a search is worth: proofShare
	// times the cost of a search, gatherShare times while every worker is busy. perSearch is that cost without any object.
	proofWithin = 250 * time.Millisecond
	proofShare  = 3
	perSearch   = 2 * time.Millisecond
)

// kin is what a watch of the controlled resources has shown, while many objects with followers move.
//
// The watch finds the followers of an object without a search. It may be late, and the versions of two resources cannot be compared. The proof
// that it has shown every follower is a write of the engine itself: the write of any object of the resource, which began after the object was
// known to be without a shard. When the watch has shown that write, it has shown everything that was created before.
type kin struct {
	// begun counts the objects that have begun to wait for their followers.
	begun int
	// of are the watched resources.
	of map[schema.GroupResource]*kinOf
}

// kinOf is what the watch of one resource has shown.
type kinOf struct {
	// members are the objects that the watch shows now, by the UIDs of their controllers; controllers are the reverse. They are nil if there
	// are too many.
	members     map[types.UID]map[feed.ID]feed.Object
	controllers map[feed.ID]types.UID
	// listed reports whether the first list is complete. since is the value of begun when it began.
	listed bool
	since  int
	// position is the version that the watch has reached after the list.
	position string
	// proofs are writes that the watch has not shown yet. proven is the last object, by the order of begun, whose followers have all been shown.
	proofs []proof
	proven int
}

// proof is a write to a resource. It began when begun objects waited.
type proof struct {
	begun   int
	version string
}

// watched reports whether all controlled resources are watched, and their lists are complete.
func (k *kin) watched(controlled []resources.Resource) bool {
	return len(controlled) > 0 && !slices.ContainsFunc(controlled, func(r resources.Resource) bool {
		of := k.of[r.GroupResource()]

		return of == nil || !of.listed || of.members == nil
	})
}

// proven reports whether all followers of the family have been shown.
func (k *kin) proven(f *family) bool {
	for _, of := range k.of {
		if of.proven < f.number {
			return false
		}
	}

	return true
}

// below returns the objects that follow the object with this UID. Users may make objects control each other in a circle. Therefore, it goes down
// only as far as objects can follow others.
func (k *kin) below(uid types.UID) []feed.Object { return k.levels(uid, contract.MaxDepth) }

func (k *kin) levels(uid types.UID, n int) (all []feed.Object) {
	if n == 0 {
		return nil
	}

	for _, of := range k.of {
		for _, o := range of.members[uid] {
			all = append(append(all, o), k.levels(o.UID, n-1)...)
		}
	}

	return all
}

// show records that the watch has shown an object, or that it is gone; then, o has no controller.
func (of *kinOf) show(o feed.Object) {
	if of.members == nil {
		return
	}

	if before, known := of.controllers[o.ID]; known {
		if delete(of.members[before], o.ID); len(of.members[before]) == 0 {
			delete(of.members, before)
		}

		delete(of.controllers, o.ID)
	}

	switch {
	case o.Controller == nil:
		return
	case len(of.controllers) >= fewObjects:
		of.members, of.controllers = nil, nil
		return
	}

	uid := o.Controller.UID
	if of.members[uid] == nil {
		of.members[uid] = map[feed.ID]feed.Object{}
	}

	of.members[uid][o.ID], of.controllers[o.ID] = o, uid
}

// reach records the position of the watch, and reports whether that proves anything new.
func (of *kinOf) reach(version string) (news bool) {
	if !of.listed {
		return false
	}

	of.position = version
	of.proofs = slices.DeleteFunc(of.proofs, func(p proof) bool {
		shown := !feed.Older(version, p.version)
		if shown && p.begun > of.proven {
			of.proven, news = p.begun, true
		}

		return shown
	})

	return news
}

// proofWithin returns how long an object waits for the proof that the watch has shown all its followers.
func (e *Engine) proofWithin() time.Duration {
	share := proofShare
	if e.queued() {
		share = gatherShare
	}

	e.mu.Lock()
	defer e.mu.Unlock()

	seen := 0
	for _, of := range e.kin.of {
		seen += len(of.controllers)
	}

	return min(proofWithin, time.Duration(share)*perSearch+time.Duration(share*seen)*perObject)
}

// Writing implements [move.Obligations].
func (s *state) Writing(of schema.GroupResource) (written func(version string)) {
	s.mu.Lock()
	defer s.mu.Unlock()

	begun := s.kin.begun

	return func(version string) {
		s.mu.Lock()
		defer s.mu.Unlock()

		k := s.kin.of[of]
		if k == nil || !k.listed || begun <= k.proven {
			return
		}

		k.proofs = append(k.proofs, proof{begun, version})
		if k.position != "" && k.reach(k.position) {
			notify(s.gather)
		}
	}
}

// kinSink receives what a watch of kin shows.
type kinSink struct {
	e  *Engine
	of schema.GroupResource
}

func (s *kinSink) update(change func(k *kinOf) (news bool)) {
	s.e.mu.Lock()
	defer s.e.mu.Unlock()

	if change(s.e.kin.of[s.of]) {
		notify(s.e.gather)
	}
}

func (s *kinSink) Begin() {
	s.update(func(k *kinOf) bool {
		*k = kinOf{
			members: map[types.UID]map[feed.ID]feed.Object{}, controllers: map[feed.ID]types.UID{}, since: s.e.kin.begun,
		}

		return false
	})
}

func (s *kinSink) Present(ctx context.Context, o feed.Object) {
	s.e.ancestors.Saw(o.GVR.GroupResource(), o.UID, o.Controller)

	var waits bool

	s.update(func(k *kinOf) bool {
		k.show(o)

		waits = len(s.e.families.byUID) > 0

		return false
	})

	if waits {
		// An error concerns the target or the namespace: the move of the object that waits meets it too.
		_ = s.e.gatherOne(ctx, o, s.e.waits)
	}

	s.update(func(k *kinOf) bool { return k.reach(o.ResourceVersion) })
}

func (s *kinSink) Gone(id feed.ID, version string) {
	s.update(func(k *kinOf) bool {
		k.show(feed.Object{ID: id})

		return k.reach(version)
	})
}

func (s *kinSink) Listed() {
	s.update(func(k *kinOf) bool {
		k.listed, k.proven = true, k.since
		s.e.room.Broadcast()

		return true
	})
}

// Failed does nothing: if the watch is late, a search reports what cannot be read.
func (s *kinSink) Failed(error) {}

// waits reports whether the object with this UID waits for its followers, or did so lately.
func (s *state) waits(uid types.UID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.families.byUID[uid] != nil
}

// kinWatch runs the watches of kin. Only the gatherer uses it.
type kinWatch struct {
	e       *Engine
	watched []resources.Resource
	among   string
	stop    func()
}

// follow watches the controlled resources of the target, and waits until their lists are complete. It does nothing if they are watched already.
func (w *kinWatch) follow(ctx context.Context) {
	controlled, among := w.e.Target().Set.Controlled(), w.e.followers()
	if slices.Equal(controlled, w.watched) && among == w.among {
		return
	}

	w.end()

	ctx, cancel := context.WithCancel(ctx)

	var wg sync.WaitGroup

	w.e.mu.Lock()
	w.e.kin.of = map[schema.GroupResource]*kinOf{}

	for _, r := range controlled {
		w.e.kin.of[r.GroupResource()] = &kinOf{}
	}
	w.e.mu.Unlock()

	for _, r := range controlled {
		sink := &kinSink{e: w.e, of: r.GroupResource()}
		stream := feed.NewStream(w.e.Objects, feed.Scope{GVR: r.GVR, Selector: among}, sink, w.e.Clock)

		wg.Go(func() { stream.Run(ctx) })
	}

	w.watched, w.among = slices.Clone(controlled), among
	w.stop = func() {
		cancel()
		wg.Wait()
	}

	w.e.awaitFor(ctx, kinWithin, func() bool { return w.e.kin.watched(controlled) })
}

// end ends the watches, if there are any.
func (w *kinWatch) end() {
	if w.stop == nil {
		return
	}

	w.stop()

	w.e.mu.Lock()
	w.e.kin.of = nil
	w.e.mu.Unlock()

	w.watched, w.stop = nil, nil
}
