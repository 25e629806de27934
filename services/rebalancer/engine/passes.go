package engine

import (
	"context"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
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
)

// look is what passes over the labeled objects of one resource have shown, and when the next one is due.
//
// Invariants:
//
//  1. A resource becomes verified only by a pass over its objects that ended without an error. It began when the
//     target had not changed for the settle period. None of the objects moved from its start until there was no
//     obligation of the resource. For a controlled resource, the same holds for all main resources, because their moves
//     concern what follows them.
//  2. A debt is dropped only when a pass that began after it has ended.
//  3. The intervals between failing passes over a resource, and between passes that find something repeatedly, grow up
//     to half a minute.
type look struct {
	resource resources.Resource
	// among are the resources whose moves concern its objects: itself, and all main resources if it is controlled.
	among []schema.GroupResource
	// owed reports whether a pass has to look for misplaced objects: those that a change has misplaced, or that found no
	// room.
	owed     bool
	verified bool
	// began is when the last pass began; zero if that pass proves nothing. moved is the table's count of moves then. ended
	// is when the last one ended, or when the resource became known.
	began time.Time
	moved uint64
	ended time.Time
	// next is when the next pass may begin.
	next    time.Time
	backoff wait.Backoff
	// counted is the target of the last pass that has not failed; nil if there was none yet. objects is the number of
	// objects that it saw, and keyless are those of them without a key.
	counted *Target
	objects int
	keyless Keyless
}

// review records that the target has changed, and which objects may therefore be misplaced. When partitions move
// between shards, objects that follow others move with their owners, whose moves search for them.
//
// An object that was in its place is misplaced in two cases: its partition has moved to another shard since, so that
// its shard has lost partitions between two targets; or its shard was lost in between, and a decision of that time
// reaches the object later. A watch finds the objects of shards that are not available. The pass that verifies finds
// the objects that a replica of the assigner with an older view has misplaced.
func (e *Engine) review(now time.Time, before, after *Target) {
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

		l := &look{owed: true, ended: now}
		if i := slices.IndexFunc(e.looks, func(l *look) bool { return l.resource.GroupResource() == of }); i >= 0 {
			l = e.looks[i]
		}

		if l.resource, l.among = r, []schema.GroupResource{of}; !isMain {
			l.among = append(l.among, mains...)
		}

		l.owed = l.owed || all || isMain && main
		l.doubt()
		l.backoff = e.pauses(of)
		l.next = time.Time{}
		looks = append(looks, l)
	}

	e.looks, e.since = looks, now
}

// pauses returns the pauses between passes over a resource that fail, or that find something.
func (e *Engine) pauses(of schema.GroupResource) wait.Backoff {
	return feed.Pauses("passes of "+e.Ring+" "+of.String(), 100*time.Millisecond, 30*time.Second)
}

// owe records what passes have to look for.
func (e *Engine) owe(d work.Debt) {
	for _, l := range e.looks {
		if l.owed = l.owed || d.All; d.All || d.Unseen.HasAny(l.among...) {
			l.doubt()
		}
	}
}

// verified returns the number of verified resources.
func (e *Engine) verified() (n int) {
	for _, l := range e.looks {
		if l.verified {
			n++
		}
	}

	return n
}

// objects returns the number of objects that the last passes saw, and whether they saw all resources.
func (e *Engine) objects() (n int, all bool) {
	all = true

	for _, l := range e.looks {
		n += l.objects
		all = all && l.counted != nil
	}

	return n, all
}

// pace returns the time from the end of one audit of a resource to the next, according to the budget.
func (e *Engine) pace() time.Duration {
	n, _ := e.objects()

	return max(auditEvery, time.Duration(float64(n)*float64(work.PerObject)/e.Limits.AuditBudget))
}

// doubt records that no pass has proved anything about the resource.
func (l *look) doubt() { l.verified, l.began = false, time.Time{} }

// still reports whether no object of the resource is out of its place, as far as is known.
func (l *look) still(e *Engine) bool {
	return !slices.ContainsFunc(l.among, func(of schema.GroupResource) bool {
		return !e.table.Still(of) || e.lookingFor(of)
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
func (l *look) due(e *Engine) (at time.Time) {
	still := !l.verified && l.still(e)

	if still && !l.began.IsZero() && l.moved == l.moves(e.table) && !l.owed &&
		!l.began.Before(e.since.Add(e.Limits.Settle)) {
		l.verified = true
		l.backoff = e.pauses(l.resource.GroupResource())
	}

	switch {
	case l.owed:
		at = e.since
	case !l.verified && still:
		at = e.since.Add(e.Limits.Settle)
	default:
		return time.Time{}
	}

	if at.Before(l.next) {
		return l.next
	}

	return at
}

// nextPass returns the resource of the next pass, when it is due, and whether it is an audit: a pass without a reason
// to expect misplaced objects. It returns nil if there is no target, or if it has no resources.
func (e *Engine) nextPass() (next *look, at time.Time, audit bool) {
	e.mu.Lock()
	defer e.mu.Unlock()

	before, pace := e.verified(), e.pace()

	for _, l := range e.looks {
		due, audits := l.due(e), false
		if again := l.ended.Add(pace); due.IsZero() || !due.Before(again) {
			due, audits = again, true
		}

		if next == nil || due.Before(at) {
			next, at, audit = l, due, audits
		}
	}

	if n := e.verified(); n != before {
		if n == len(e.looks) {
			e.grace = grace{known: len(e.target.View.AvailableShards())}
		}

		notify(e.news)
	}

	return next, at, audit
}

// pass visits the labeled objects of a resource whenever a pass is due.
func (e *Engine) pass(ctx context.Context) {
	for ctx.Err() == nil {
		next, at, audit := e.nextPass()
		if next != nil && !audit && !at.After(e.Clock.Now()) {
			e.awaitUrgent(ctx)

			next, at, audit = e.nextPass()
		}

		if next == nil || at.After(e.Clock.Now()) {
			e.sleep(ctx, at, e.poke)
			continue
		}

		v := e.begin(next, audit)
		if err := e.visit(ctx, v); ctx.Err() == nil {
			e.finish(v, err)
		}
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

// visit is a pass over the objects of one resource.
type visit struct {
	*look

	target *Target
	// of is the resource of the look when the pass began: another target may change it.
	of resources.Resource
	// expects reports whether the pass expects misplaced objects.
	expects bool
	// audit reports whether the pass is an audit. audits is the look if the resource was also settled when it began.
	audit  bool
	audits *look
	// sees is the number of objects that it sees, and without are those without a key.
	sees    int
	without Keyless
}

// begin records that a pass begins.
func (e *Engine) begin(l *look, audit bool) *visit {
	e.mu.Lock()
	defer e.mu.Unlock()

	v := &visit{look: l, target: e.target, of: l.resource, expects: l.owed, audit: audit}
	if audit && e.settled(l) {
		v.audits = l
	}

	l.owed, l.began, l.moved = false, e.Clock.Now(), l.moves(e.table)

	if audit {
		e.table.Search()
	}

	return v
}

// finish records the result of a pass.
func (e *Engine) finish(v *visit, err error) {
	e.update(func(now time.Time) {
		same := e.target.Same(v.target)
		v.ended = now

		if err == nil {
			v.counted, v.objects, v.keyless = v.target, v.sees, v.without
		}

		if err != nil || !same {
			v.owed = v.owed || v.expects
			v.began = time.Time{}
		}

		if same && (err != nil || !v.audit) {
			v.next = now.Add(v.backoff.Step())
		}
	})
}

// visit visits the objects of a pass.
func (e *Engine) visit(ctx context.Context, v *visit) error {
	scope := feed.Scope{GVR: v.of.GVR, Selector: e.Objects.ShardLabel()}

	held := time.Duration(0)
	if v.expects { // many objects may have to move; other passes find nothing
		held = calmHeld
	}

	h := e.hold(held)

	_, err := e.Objects.All(ctx, e.Clock, scope, func(o feed.Object) error {
		v.sees++

		s := e.observe(ctx, sight{object: o, held: h, audits: v.audits})
		if s.at.Keyless {
			v.without.add(o)
		}

		if s.missed {
			audited.WithLabelValues(e.Ring).Inc()
			log.FromContext(ctx).Info("The audit has found a misplaced object",
				"object", o.String(), "shard", o.Shard, "desired", s.at.Desired)
		}

		return ctx.Err()
	})

	h.release(ctx)

	if ctx.Err() == nil && e.Target().Same(v.target) {
		e.troubled(idOf(forMisplaced, v.of), err)
	}

	return err
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

// holding holds back the misplaced objects that a list finds until the list is complete, but no more than heldAtMost,
// and not for long. Without it, the API server would end the list, because it keeps only a limited number of writes for
// a watcher, and every move is a write. The list would then start again in pages. Only one goroutine may use a holding.
// Create it with [Engine.hold].
type holding struct {
	e       *Engine
	until   time.Time
	objects []feed.Object
}

// hold returns a holding for a list that begins now. It holds objects back for at most the given time; 0 holds nothing
// back. It holds nothing back either if the ring has few objects, because such a list is short, and cheap to repeat.
func (e *Engine) hold(atMost time.Duration) *holding {
	e.mu.Lock()
	defer e.mu.Unlock()

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
