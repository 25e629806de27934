package move

import (
	"sync"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/clusterring/clusterring/services/rebalancer/feed"
)

// Turns separates decisions about a main object from decisions about the objects that follow it: between the read of an owner
// and the end of the write that is based on it, the owner is neither drained nor moved. Its methods are safe for concurrent
// use.
//
// Invariants:
//
//  1. While a main object is processed, no object that follows it is processed, and vice versa. Objects that follow the
//     same owner are processed concurrently. Different owners are independent of each other.
//  2. No call blocks: an object that does not get the turn returns to the queue when the turn of the others ends.
//     Therefore, no worker is delayed, there are no deadlocks, and nothing has to be woken when the service stops.
//  3. When an owner has been deferred, no more of its followers join the turn. The owner returns to the queue before the
//     followers that are deferred after it. It therefore gets its turn, however many followers there are.
//  4. An owner is stored only while it, or one of its followers, is processed.
type Turns struct {
	// again returns a deferred object to the queue.
	again func(feed.ID)

	mu     sync.Mutex
	owners map[feed.ID]*turn
}

// turn is the current turn of one owner or its followers.
type turn struct {
	// deciding counts the decisions in progress; it is at least 1.
	deciding int
	// own reports whether the decision is about the owner itself.
	own bool
	// owners and followers are the deferred objects. owners contains only the owner, in the versions in which workers named
	// it.
	owners, followers sets.Set[feed.ID]
}

// NewTurns returns Turns without any turn. The function again returns a deferred object to the queue.
func NewTurns(again func(feed.ID)) *Turns {
	return &Turns{again: again, owners: map[feed.ID]*turn{}}
}

// Begin requests the turn to decide about an object: about the owner itself if both IDs identify the same object, or about a
// follower of it. If ok is true, end must be called after the decision has been carried out. If ok is false, the object will
// return to the queue.
func (t *Turns) Begin(owner, id feed.ID) (end func(), ok bool) {
	owner, own := anyVersion(owner), anyVersion(owner) == anyVersion(id)

	t.mu.Lock()
	defer t.mu.Unlock()

	now, busy := t.owners[owner]
	if !busy {
		now = &turn{own: own, owners: sets.New[feed.ID](), followers: sets.New[feed.ID]()}
		t.owners[owner] = now
	}

	switch {
	case busy && own:
		now.owners.Insert(id)
		return nil, false
	case busy && (now.own || now.owners.Len() > 0):
		now.followers.Insert(id)
		return nil, false
	}

	now.deciding++

	return func() { t.end(owner, now) }, true
}

// Idle reports whether no decision is in progress.
func (t *Turns) Idle() bool {
	t.mu.Lock()
	defer t.mu.Unlock()

	return len(t.owners) == 0
}

func (t *Turns) end(owner feed.ID, now *turn) {
	t.mu.Lock()

	now.deciding--

	over := now.deciding == 0
	if over {
		delete(t.owners, owner)
	}

	t.mu.Unlock()

	if !over {
		return
	}

	for _, ids := range []sets.Set[feed.ID]{now.owners, now.followers} {
		for id := range ids {
			t.again(id)
		}
	}
}

// anyVersion returns an ID that does not depend on the version in which the object was read.
func anyVersion(id feed.ID) feed.ID {
	id.GVR.Version = ""

	return id
}
