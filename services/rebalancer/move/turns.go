package move

import (
	"sync"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/clusterring/clusterring/services/rebalancer/objects"
)

// Turns keeps decisions about a main object apart from those about the objects that follow it: between the look at an owner
// and the end of the write that builds on it, the owner is neither drained nor moved. Its methods may be called by any
// goroutine.
//
// Invariants:
//
//  1. While a main object is decided, nothing that follows it is, and the other way round. Objects that follow one owner are
//     decided side by side, and different owners have nothing to do with each other.
//  2. Nobody waits: an object whose turn it is not goes back into the queue when the turn of the others ends. So no worker
//     is held up, none can lock another out, and a stop has nothing to wake.
//  3. Once an owner is put off, no more of its followers join the turn, and it comes into the queue before those that are
//     put off after it: however many there are, its turn comes.
//  4. An owner is known here only while it, or one of its followers, is decided.
type Turns struct {
	// again puts an object into the queue that was put off.
	again func(objects.ID)

	mu     sync.Mutex
	owners map[objects.ID]*turn
}

// turn is the present turn around one owner.
type turn struct {
	// deciding counts the decisions under way; there is at least one.
	deciding int
	// own says that the owner itself is decided.
	own bool
	// owners and followers are who was put off. The former is the owner alone, as whoever decides about it names it.
	owners, followers sets.Set[objects.ID]
}

// NewTurns returns turns of which nobody has one. The function puts an object into the queue that was put off.
func NewTurns(again func(objects.ID)) *Turns {
	return &Turns{again: again, owners: map[objects.ID]*turn{}}
}

// Begin asks for the turn to decide about an object: about the owner itself, if both IDs name one object, or about what
// follows it. If ok, end must be called once the decision is carried out. If not, the object comes into the queue again.
func (t *Turns) Begin(owner, id objects.ID) (end func(), ok bool) {
	owner, own := anyVersion(owner), anyVersion(owner) == anyVersion(id)

	t.mu.Lock()
	defer t.mu.Unlock()

	now, busy := t.owners[owner]
	if !busy {
		now = &turn{own: own, owners: sets.New[objects.ID](), followers: sets.New[objects.ID]()}
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

// Idle reports whether nobody decides about anything.
func (t *Turns) Idle() bool {
	t.mu.Lock()
	defer t.mu.Unlock()

	return len(t.owners) == 0
}

func (t *Turns) end(owner objects.ID, now *turn) {
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

	for _, ids := range []sets.Set[objects.ID]{now.owners, now.followers} {
		for id := range ids {
			t.again(id)
		}
	}
}

// anyVersion names an object whatever version it was read in.
func anyVersion(id objects.ID) objects.ID {
	id.GVR.Version = ""

	return id
}
