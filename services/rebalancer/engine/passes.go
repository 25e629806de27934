package engine

import (
	"cmp"
	"context"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/rebalancer/feed"
	"github.com/clusterring/clusterring/services/rebalancer/work"
)

const (
	// urgentAtMost is how long a pass waits for more urgent work: about twenty-five thousand moves.
	urgentAtMost = time.Minute
	// auditEvery is the shortest time from one audit to the next.
	auditEvery = time.Minute
	// auditBudget is the default share of a core that audits may use.
	auditBudget = 0.01
	// perObject is the cost of visiting one object.
	perObject = work.PerObject
)

// passes decides when to visit the labeled objects, and which of them. Create it with newPasses.
//
// Invariants:
//
//  1. A resource becomes verified only by a pass over all its objects that ended without an error. It began when the target had
//     not changed for the settle period. None of the objects moved from its start until there was no obligation of the resource.
//     For a controlled resource, the same holds for all main resources, because their moves concern what follows them.
//  2. A debt is dropped only when a pass that began after it has ended.
//  3. The intervals between failing passes over a resource, and between passes that find something repeatedly, grow up to half a
//     minute.
type passes struct {
	ring   string
	settle time.Duration
	budget float64

	// since is the time of the last change of the target.
	since time.Time
	// looks are about the resources of the target, in its order.
	looks []*look
	// ended is when the last pass over all objects ended, or when the first was due. objects is the number of objects that it
	// saw.
	ended   time.Time
	objects int
}

// look is what passes know about one resource.
type look struct {
	resource resources.Resource
	// among are the resources whose moves concern its objects: itself, and all main resources if it is controlled.
	among []schema.GroupResource
	// extent is where a pass has to look.
	extent   extent
	verified bool
	// began is when the last pass over all its objects began; zero if that pass proves nothing. moved is the table's count of
	// moves then.
	began time.Time
	moved uint64
	// next is when the next pass may begin.
	next    time.Time
	backoff feed.Pauses
	// keyless are the objects without a key that the last pass over all its objects saw. counted is the target of that pass;
	// nil if there was none yet.
	keyless Keyless
	counted *Target
}

// newPasses returns the passes of a ring that no pass has visited yet.
func newPasses(ring string, l Limits) passes {
	return passes{ring: ring, settle: l.Settle, budget: cmp.Or(l.AuditBudget, auditBudget)}
}

// retarget records that the target has changed, and where objects may therefore be misplaced. When partitions move between
// shards, objects that follow others move with their owners, whose moves search for them.
func (p *passes) retarget(now time.Time, before, after *Target) {
	var (
		more  = extentOf(before, after)
		mains []schema.GroupResource
		looks []*look
	)

	for i, r := range everything(after.Set) {
		of, main := r.GroupResource(), i < len(after.Set.Main())
		if main {
			mains = append(mains, of)
		}

		l := p.look(of)
		if l == nil {
			l = &look{
				extent:  extent{all: true},
				backoff: feed.NewPauses("passes of "+p.ring+" "+of.String(), 100*time.Millisecond, 30*time.Second),
			}
		}

		if l.resource, l.among = r, []schema.GroupResource{of}; !main {
			l.among = append(l.among, mains...)
		}

		if main || more.all {
			l.extent.add(more)
		}

		l.doubt()
		l.backoff.Reset()
		l.next = time.Time{}
		looks = append(looks, l)
	}

	if p.looks, p.since = looks, now; p.ended.IsZero() {
		p.ended = now
	}
}

// look returns what is known about a resource; nil if it is not one of the target.
func (p *passes) look(of schema.GroupResource) *look {
	for _, l := range p.looks {
		if l.resource.GroupResource() == of {
			return l
		}
	}

	return nil
}

// owe records what passes have to look for.
func (p *passes) owe(d work.Debt) {
	more := extent{all: d.All, shards: sets.New(d.Misplaced...)}

	for _, l := range p.looks {
		l.extent.add(more)

		if more.any() || d.Unseen.HasAny(l.among...) {
			l.doubt()
		}
	}
}

// verified returns the number of verified resources.
func (p *passes) verified() (n int) {
	for _, l := range p.looks {
		if l.verified {
			n++
		}
	}

	return n
}

// pace returns the time from the end of one audit to the next, according to the budget.
func (p *passes) pace() time.Duration {
	return max(auditEvery, time.Duration(float64(p.objects)*float64(perObject)/p.budget))
}

// doubt records that no pass has proved anything about the resource.
func (l *look) doubt() { l.verified, l.began = false, time.Time{} }

// still reports whether no object of the resource is out of its place, as far as is known.
func (l *look) still(s *state) bool {
	return !slices.ContainsFunc(l.among, func(of schema.GroupResource) bool { return !s.table.Still(of) || s.lookingFor(of) })
}

// moves counts the moves that concern the resource.
func (l *look) moves(t *work.Table) (n uint64) {
	for _, of := range l.among {
		n += t.Moved(of)
	}

	return n
}

// due returns when the next pass over the resource is due; zero if only a change can make one due. A pass looks where a change
// may have misplaced objects. If there is no such place, it verifies that every object is in its place. The lock must be held.
func (l *look) due(s *state) (at time.Time) {
	p := &s.passes
	still := !l.verified && l.still(s)

	if still && !l.began.IsZero() && l.moved == l.moves(s.table) && !l.extent.any() && !l.began.Before(p.since.Add(p.settle)) {
		l.verified = true
		l.backoff.Reset()
	}

	switch {
	case l.extent.any():
		at = p.since
	case !l.verified && still:
		at = p.since.Add(p.settle)
	default:
		return time.Time{}
	}

	if at.Before(l.next) {
		return l.next
	}

	return at
}

// nextPass returns when the next pass is due, and whether it is an audit: a pass over all objects without a reason to expect
// misplaced ones. The time is zero if there is no target.
func (s *state) nextPass() (at time.Time, audit bool) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.target == nil {
		return time.Time{}, false
	}

	p, before := &s.passes, s.passes.verified()
	at, audit = p.ended.Add(p.pace()), true

	for _, l := range p.looks {
		if then := l.due(s); !then.IsZero() && then.Before(at) {
			at, audit = then, false
		}
	}

	if n := p.verified(); n != before {
		if n == len(p.looks) {
			s.grace = grace{known: len(s.target.View.AvailableShards())}
		}

		notify(s.news)
	}

	return at, audit
}

// pass visits labeled objects whenever a pass is due.
func (e *Engine) pass(ctx context.Context) {
	for ctx.Err() == nil {
		if at, audit := e.nextPass(); at.IsZero() || at.After(e.Clock.Now()) {
			e.sleep(ctx, at, e.poke)
		} else {
			e.once(ctx, audit)
		}
	}
}

// once makes one pass.
func (e *Engine) once(ctx context.Context, audit bool) {
	if !audit {
		e.awaitUrgent(ctx)
	}

	p := e.begin(audit)

	for _, v := range p.visits {
		if v.all || len(v.shards) > 0 {
			v.err = e.visit(ctx, p, v)
		}
	}

	if ctx.Err() == nil {
		e.finish(p)
	}
}

// awaitUrgent lets the objects go first that are known to be out of their places: no shard may work on them, and a pass over
// very many objects would keep the API server busy. There may always be another such object.
func (e *Engine) awaitUrgent(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer e.Clock.AfterFunc(urgentAtMost, cancel).Stop()

	e.await(ctx, e.room, func() bool { return e.unlisted.Len() == 0 && e.table.Busy() == 0 })
}
