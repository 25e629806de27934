package engine

import (
	"cmp"
	"context"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/clusterring/clusterring/services/internal/hashring"
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
//  1. A resource becomes verified only by a pass over all its objects that ended without an error. It began when the
//     target had not changed for the settle period. None of the objects moved from its start until there was no
//     obligation of the resource. For a controlled resource, the same holds for all main resources, because their moves
//     concern what follows them.
//  2. A debt is dropped only when a pass that began after it has ended.
//  3. The intervals between failing passes over a resource, and between passes that find something repeatedly, grow up
//     to half a minute.
type passes struct {
	ring   string
	settle time.Duration
	budget float64

	// since is the time of the last change of the target.
	since time.Time
	// looks are about the resources of the target, in its order.
	looks []*look
	// ended is when the last pass over all objects ended, or when the first was due. objects is the number of objects that
	// it saw.
	ended   time.Time
	objects int
}

// look is what passes know about one resource.
type look struct {
	resource resources.Resource
	// among are the resources whose moves concern its objects: itself, and all main resources if it is controlled.
	among []schema.GroupResource
	// owed reports whether a pass has to look for misplaced objects: those that a change has misplaced, or that found no
	// room.
	owed     bool
	verified bool
	// began is when the last pass over all its objects began; zero if that pass proves nothing. moved is the table's count
	// of moves then.
	began time.Time
	moved uint64
	// next is when the next pass may begin.
	next    time.Time
	backoff feed.Pauses
	// keyless are the objects without a key that the last pass over all its objects saw. counted is the target of that
	// pass; nil if there was none yet.
	keyless Keyless
	counted *Target
}

// newPasses returns the passes of a ring that no pass has visited yet.
func newPasses(ring string, l Limits) passes {
	return passes{ring: ring, settle: l.Settle, budget: cmp.Or(l.AuditBudget, auditBudget)}
}

// retarget records that the target has changed, and which objects may therefore be misplaced. When partitions move
// between shards, objects that follow others move with their owners, whose moves search for them.
//
// An object that was in its place is misplaced in two cases: its partition has moved to another shard since, so that
// its shard has lost partitions between two targets; or its shard was lost in between, and a decision of that time
// reaches the object later. A watch finds the objects of shards that are not available. The pass that verifies finds
// the objects that a replica of the assigner with an older view has misplaced.
func (p *passes) retarget(now time.Time, before, after *Target) {
	var (
		all   = !before.Covers(after)
		main  = all || redistributes(before, after)
		mains []schema.GroupResource
		looks []*look
	)

	for i, r := range everything(after.Set) {
		of, isMain := r.GroupResource(), i < len(after.Set.Main())
		if isMain {
			mains = append(mains, of)
		}

		l := p.look(of)
		if l == nil {
			l = &look{
				owed:    true,
				backoff: feed.NewPauses("passes of "+p.ring+" "+of.String(), 100*time.Millisecond, 30*time.Second),
			}
		}

		if l.resource, l.among = r, []schema.GroupResource{of}; !isMain {
			l.among = append(l.among, mains...)
		}

		l.owed = l.owed || all || isMain && main
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
	for _, l := range p.looks {
		if l.owed = l.owed || d.All; d.All || d.Unseen.HasAny(l.among...) {
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
	return !slices.ContainsFunc(l.among, func(of schema.GroupResource) bool {
		return !s.table.Still(of) || s.lookingFor(of)
	})
}

// moves counts the moves that concern the resource.
func (l *look) moves(t *work.Table) (n uint64) {
	for _, of := range l.among {
		n += t.Moved(of)
	}

	return n
}

// due returns when the next pass over the resource is due; zero if only a change can make one due. A pass looks where a
// change may have misplaced objects. If there is no such place, it verifies that every object is in its place. The lock
// must be held.
func (l *look) due(s *state) (at time.Time) {
	p := &s.passes
	still := !l.verified && l.still(s)

	if still && !l.began.IsZero() && l.moved == l.moves(s.table) && !l.owed &&
		!l.began.Before(p.since.Add(p.settle)) {
		l.verified = true
		l.backoff.Reset()
	}

	switch {
	case l.owed:
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

// nextPass returns when the next pass is due, and whether it is an audit: a pass over all objects without a reason to
// expect misplaced ones. The time is zero if there is no target.
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
		v.err = e.visit(ctx, p, v)
	}

	if ctx.Err() == nil {
		e.finish(p)
	}
}

// awaitUrgent lets the objects go first that are known to be out of their places: no shard may work on them, and a pass
// over very many objects would keep the API server busy. There may always be another such object.
func (e *Engine) awaitUrgent(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer e.Clock.AfterFunc(urgentAtMost, cancel).Stop()

	e.await(ctx, e.room, func() bool { return len(e.unlisted) == 0 && e.table.Busy() == 0 })
}

// round is one pass.
type round struct {
	audit  bool
	target *Target
	visits []*visit
	// full reports whether it visits all objects. objects is the number of objects that it has seen.
	full    bool
	objects int
}

// visit is a part of a pass: the objects of one resource.
type visit struct {
	*look

	// of is the resource of the look when the pass began: another target may change it.
	of resources.Resource
	// expects reports whether the pass expects misplaced objects.
	expects bool
	// audited reports whether the pass is an audit, and the resource was settled when it began.
	audited bool
	// without are the objects without a key that it sees.
	without Keyless
	err     error
}

// begin records that a pass begins. It returns what the pass has to visit.
func (s *state) begin(audit bool) *round {
	s.mu.Lock()
	defer s.mu.Unlock()

	p := &round{audit: audit, target: s.target, full: true}
	now := s.clock.Now()

	for _, l := range s.passes.looks {
		at := l.due(s)
		if !audit && (at.IsZero() || at.After(now)) {
			p.full = false
			continue
		}

		v := &visit{look: l, of: l.resource, expects: l.owed, audited: audit && s.settled(l)}
		l.owed, l.began, l.moved = false, now, l.moves(s.table)

		p.visits = append(p.visits, v)
	}

	if p.full {
		s.table.Search()
	}

	return p
}

// finish records the result of a pass.
func (s *state) finish(p *round) {
	s.update(func(now time.Time) {
		same, failed := s.target.Same(p.target), false

		for _, v := range p.visits {
			failed = failed || v.err != nil

			if v.err == nil {
				v.keyless, v.counted = v.without, p.target
			}

			if v.err != nil || !same {
				v.owed = v.owed || v.expects
				v.began = time.Time{}
			}

			if same && (v.err != nil || !p.audit) {
				v.next = now.Add(v.backoff.Next())
			}
		}

		if p.full {
			s.passes.ended = now
		}

		if p.full && !failed {
			s.passes.objects = p.objects
		}
	})
}

// visit makes one visit.
func (e *Engine) visit(ctx context.Context, p *round, v *visit) error {
	scope := feed.Scope{GVR: v.of.GVR, Selector: e.Objects.ShardLabel()}

	held := time.Duration(0)
	if v.expects { // many objects may have to move; other passes find nothing
		held = calmHeld
	}

	err := e.list(ctx, scope, held, func(s sight) { e.see(ctx, p, v, s) })
	if ctx.Err() == nil && e.Target().Same(p.target) {
		e.troubled(idOf(forMisplaced, v.of), err)
	}

	return err
}

// see observes an object that a pass visits.
func (e *Engine) see(ctx context.Context, p *round, v *visit, s sight) {
	o := s.object
	p.objects++

	known := v.audited && e.knows(o.ID)

	at, inPlace := e.observe(ctx, s)
	if at.Keyless {
		v.without.add(o)
	}

	if v.audited && !inPlace && !known && e.undisturbed(v.look) {
		audited.WithLabelValues(e.Ring).Inc()
		log.FromContext(ctx).Info("The audit has found a misplaced object",
			"object", o.String(), "shard", o.Shard, "desired", at.Desired)
	}
}

// undisturbed reports whether nothing has changed, and nothing was owed, since the resource was verified. A ring that
// changes and changes back may have misplaced objects.
func (e *Engine) undisturbed(l *look) bool {
	e.mu.Lock()
	defer e.mu.Unlock()

	return l.verified
}

// redistributes reports whether objects of shards that are available may belong to other shards than before.
func redistributes(before, after *Target) bool {
	was := before.View.Table()
	loses := sets.New(hashring.LosingShards(was, after.View.Table())...)

	return slices.ContainsFunc(after.View.AvailableShards(), func(name string) bool {
		return !was.Has(name) || loses.Has(name)
	})
}

const (
	// heldAtMost is how many objects a list holds back, fewer than maxActive: 7 MB.
	heldAtMost = 15_000
	// urgentHeld and calmHeld are how long objects are held back: objects that no shard works on, and objects that their
	// shard continues to work on.
	urgentHeld = 5 * time.Second
	calmHeld   = 30 * time.Second
)

// list lists the objects of a scope, and passes each to see, which observes it. Objects that are out of place are held
// back for at most the given time; 0 holds nothing back.
func (e *Engine) list(ctx context.Context, scope feed.Scope, held time.Duration, see func(sight)) error {
	h := e.hold(held)
	defer h.release(ctx)

	_, err := e.Objects.All(ctx, e.Clock, scope, func(o feed.Object) error {
		see(sight{object: o, held: h})

		return ctx.Err()
	})

	return err
}

// holding holds back the misplaced objects that a list finds until the list is complete, but no more than heldAtMost,
// and not for long. Without it, the API server would end the list, because it keeps only a limited number of writes for
// a watcher, and every move is a write. The list would then start again in pages. Only one goroutine may use a holding.
// Create it with [Engine.hold].
type holding struct {
	e       *Engine
	until   time.Time
	objects []feed.Object
}

// hold returns a holding for a list that begins now. It holds objects back for at most the given time. It holds nothing
// back if the ring has few objects, because such a list is short, and cheap to repeat.
func (e *Engine) hold(atMost time.Duration) *holding {
	h := &holding{e: e}
	if !e.few() {
		h.until = e.Clock.Now().Add(atMost)
	}

	return h
}

// keep reports whether the object is held back.
func (h *holding) keep(ctx context.Context, o feed.Object) bool {
	if h == nil {
		return false
	}

	if len(h.objects) == heldAtMost || !h.e.Clock.Now().Before(h.until) {
		h.release(ctx)

		return false
	}

	h.objects = append(h.objects, o)

	return true
}

// release observes all objects that were held back. From then on, nothing is held back.
func (h *holding) release(ctx context.Context) {
	if h == nil {
		return
	}

	objects := h.objects
	h.objects, h.until = nil, time.Time{}

	for _, o := range objects {
		h.e.observe(ctx, sight{object: o})
	}
}
