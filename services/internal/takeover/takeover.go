// Package takeover decides whether objects may be taken from a shard without asking it.
//
// It reads the shard's Lease from the API server's storage, because the caches that say "not available" may lag behind a
// shard that has taken its Lease back, and it remembers when Leases vanished, because a Lease that somebody deleted says
// nothing about the process that held it.
package takeover

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/invariants"
	"github.com/clusterring/clusterring/services/internal/lease"
	"github.com/clusterring/clusterring/services/internal/membership"
)

const (
	// trust is how long an answer "not held" is used without asking again. It is far below the time that any shard needs to
	// notice that it lost its Lease and to start work again.
	trust = 250 * time.Millisecond
	// renew is how long before the end of its time such an answer is asked for again, so that nobody has to wait for the next.
	renew = trust / 2
	// few is up to how many shards are read one by one. To find one the API server looks at every Lease that there is, as it
	// does to find all of a ring, so that the answer of a thousand costs as much as some few reads of one.
	few = 4
	// lately is how long a shard counts as one that is asked about. Objects of many shards are dealt with in any order.
	lately = time.Second
	// askAgain is the pause after an answer that cannot say when it will change. Where a shard goes on holding its Lease, the pause grows to
	// seldom: that is so as long as a name is held twice, and [Guard.Observe] tells of the end.
	askAgain = time.Second
	seldom   = 30 * time.Second
	// forget is how long a shard without a Lease is remembered.
	forget = time.Hour
	// longestWait bounds the wait for a process whose Lease was deleted, whatever durations Leases state.
	longestWait = 5 * time.Minute
)

// Verdict is whether objects may be taken from a shard.
type Verdict struct {
	// Allowed says that the shard does not hold its Lease.
	Allowed bool
	// Until is, by the guard's clock, until when the shard surely does not work, if objects may be taken from it: what takes
	// them must have been written by then. Ask again for more.
	Until time.Time
	// RetryAfter is when to ask again if it is not; always positive then.
	RetryAfter time.Duration
	// Reason says, for a person, why not.
	Reason string
}

// Guard answers for the shards of one ring. It may be used by several goroutines.
//
// Invariants:
//
//  1. No answer allows to take objects from a shard whose Lease was held by it a quarter of a second ago or later.
//  2. A shard whose Lease was deleted while it was held keeps its objects until the Lease has been absent for 2×D: only
//     then a process that renews it would have noticed, and stopped or made the Lease anew. This is 5 minutes at most. It is so for
//     each Lease of the name: another one, in another namespace or made since, says nothing about that process.
//  3. A shard that has never had a Lease since this guard watches is treated as if its Lease had been deleted when the guard
//     began, with the longest duration of the ring's Leases.
//  4. No process works as a shard between the answer that allows to take its objects and the end of Until. The rules U1 to U5
//     say why.
//  5. An answer that does not allow to take objects says when to ask again.
type Guard struct {
	pace   invariants.Pace
	ring   string
	reader client.Reader
	clock  clock.PassiveClock
	began  time.Time

	together gate // held during a live read of all shards

	mu      sync.Mutex
	longest time.Duration
	shards  map[string]*shard
}

type shard struct {
	reading gate // held during a live read of this shard, so that there is one at a time

	// The rest is guarded by Guard.mu.
	held        bool // whether a Lease of the name was, as last seen, by cache or live; true before anything was
	duration    time.Duration
	own         time.Duration     // duration while the shard held it; zero if that was not seen
	holders     map[string]holder // who was seen to hold a Lease of the name, by its namespace, and not to have given it up
	past        past              // of live reads, while there is at most one Lease
	holdOff     *time.Duration    // what a Lease of this name has said last
	vanished    time.Time         // since when there is no Lease of the name; zero while there is
	heldSince   time.Time         // since when all live reads have found that it holds its Lease; zero if the last one has not
	asked       time.Time         // when the last question came; zero if none has
	read        time.Time         // when the read began that verdict comes from
	verdict     Verdict
	allowedTill time.Time
}

// holder is a process that holds a Lease, or held it when that was deleted.
type holder struct {
	lease    types.UID
	duration time.Duration
	vanished time.Time // zero while there is that Lease
}

// sighting is one Lease of a shard's name, by cache or live.
type sighting struct {
	namespace string
	lease     types.UID
	held      bool
	duration  time.Duration
}

// gate lets one in at a time, like a mutex; who waits for it leaves when its context ends.
type gate chan struct{}

func newGate() gate { return make(gate, 1) }

func (g gate) enter(ctx context.Context) error {
	select {
	case g <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (g gate) tryEnter() bool {
	select {
	case g <- struct{}{}:
		return true
	default:
		return false
	}
}

func (g gate) leave() { <-g }

// New returns a guard for the named ring. The reader must not be a cache. The guard's observation begins now: pass every
// later view of the ring to [Guard.Observe].
func New(ring string, reader client.Reader, clk clock.PassiveClock) *Guard {
	return &Guard{
		ring: ring, reader: reader, clock: clk, began: clk.Now(),
		longest: lease.DefaultDuration, shards: map[string]*shard{}, together: newGate(),
	}
}

// Observe takes note of the ring's Leases as the cache has them. It returns the shards that have stopped to hold theirs, in the view's
// order: about them it is worth to ask again at once.
func (g *Guard) Observe(view *membership.View) (released []string) {
	g.mu.Lock()
	defer g.mu.Unlock()

	now := g.clock.Now()
	seen := map[string][]sighting{}

	for _, s := range view.Shards() {
		seen[s.Name] = append(seen[s.Name], sighting{s.Namespace, s.UID, s.Holder == s.Name, s.Duration})
		g.longest = max(g.longest, s.Duration)
	}

	for _, name := range slices.Sorted(maps.Keys(seen)) {
		known := g.shard(name)
		before := known.held

		known.see(now, seen[name])
		known.duration = seen[name][len(seen[name])-1].duration

		if before && !known.held {
			released = append(released, name)
		}
	}

	for name, known := range g.shards {
		if len(seen[name]) == 0 {
			known.see(now, nil)
		}

		if !known.vanished.IsZero() && now.Sub(known.vanished) > forget {
			delete(g.shards, name)
		}
	}

	g.changed()

	return released
}

// changed checks the invariants after a change; g.mu is held.
func (g *Guard) changed() {
	if invariants.Enabled {
		g.check()
	}
}

// shard returns what is known of a shard; g.mu is held.
func (g *Guard) shard(name string) *shard {
	known, ok := g.shards[name]
	if !ok {
		known = &shard{
			held: true, duration: g.longest, vanished: g.began, reading: newGate(),
			holders: map[string]holder{nowhere: {duration: g.longest, vanished: g.began}},
		}
		g.shards[name] = known
	}

	return known
}

// MayTake reports whether objects may be taken from the named shard, by one live read of its Lease or by an answer that is
// fresh enough. Concurrent questions about one shard share the read, and while an answer is renewed that is still good, it is
// given to all but the one who renews it. Where many shards are asked about, one read serves them all. The error is the API
// server's.
func (g *Guard) MayTake(ctx context.Context, name string) (Verdict, error) {
	q := g.ask(name)

	switch {
	case q.left > renew:
		return q.last, nil
	case q.left <= 0:
		if err := q.reading.enter(ctx); err != nil {
			return Verdict{}, fmt.Errorf("wait for the Lease of shard %s: %w", name, err)
		}
	case !q.reading.tryEnter():
		return q.last, nil
	}
	defer q.reading.leave()

	if v, ok := g.answered(q); ok { // thanks to whom we have waited for
		return v, nil
	}

	if q.many {
		return g.readAll(ctx, q)
	}

	return g.readOne(ctx, q)
}

// question is one about a shard, as it was asked.
type question struct {
	name  string
	known *shard
	at    time.Time
	// last is the last answer.
	last Verdict
	// left is for how long the last answer still allows to take objects from the shard; not positive if it does not.
	left time.Duration
	// many says that so many shards are asked about that they are read together.
	many bool
	// reading is what is held during a read.
	reading gate
}

func (g *Guard) ask(name string) question {
	g.mu.Lock()
	defer g.mu.Unlock()

	known, now := g.shard(name), g.clock.Now()
	known.asked = now
	q := question{name: name, known: known, at: now, last: known.verdict, left: known.allowedTill.Sub(now), reading: known.reading}

	if q.left <= renew && g.askedLately(now) > few {
		q.many, q.reading = true, g.together
	}

	return q
}

// askedLately counts the shards of which somebody may soon ask again; g.mu is held.
func (g *Guard) askedLately(now time.Time) int {
	n := 0

	for _, s := range g.shards {
		if now.Sub(s.asked) < lately {
			n++
		}
	}

	return n
}

// answered returns what a read has found that began after the question.
func (g *Guard) answered(q question) (Verdict, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()

	good := q.known.allowedTill.Sub(g.clock.Now()) > renew

	return q.known.verdict, good || q.known.read.After(q.at)
}

func (g *Guard) readOne(ctx context.Context, q question) (Verdict, error) {
	began := g.clock.Now()

	leases, err := g.list(ctx, client.MatchingFields{"metadata.name": q.name})
	if err != nil {
		return Verdict{}, fmt.Errorf("read the Lease of shard %s: %w", q.name, err)
	}

	g.mu.Lock()
	defer g.mu.Unlock()

	q.known.answer(q.name, leases, span{began, g.clock.Now()})
	g.changed()

	return q.known.verdict, nil
}

// readAll reads the Leases of all shards, and answers for each that is known.
func (g *Guard) readAll(ctx context.Context, q question) (Verdict, error) {
	began := g.clock.Now()

	leases, err := g.list(ctx)
	if err != nil {
		return Verdict{}, fmt.Errorf("read the Leases of shard %s and others: %w", q.name, err)
	}

	byName := map[string][]coordinationv1.Lease{}
	for i := range leases {
		byName[leases[i].Name] = append(byName[leases[i].Name], leases[i])
	}

	g.mu.Lock()
	defer g.mu.Unlock()

	at := span{began, g.clock.Now()}
	for name, s := range g.shards {
		s.answer(name, byName[name], at)
	}

	g.changed()

	return q.known.verdict, nil
}

// list reads Leases of the ring from the API server's storage.
func (g *Guard) list(ctx context.Context, opts ...client.ListOption) ([]coordinationv1.Lease, error) {
	var leases coordinationv1.LeaseList

	err := g.reader.List(ctx, &leases, append(opts, client.MatchingLabels{v1alpha1.LabelClusterRing: g.ring})...)

	return leases.Items, err //nolint:wrapcheck // the callers say what they read
}

// answer notes what the Leases of this name say, which were read at that time, unless a read that began later has said
// already.
func (s *shard) answer(name string, leases []coordinationv1.Lease, at span) {
	if at.began.Before(s.read) {
		return
	}

	s.verdict, s.read, s.allowedTill = s.judge(name, leases, at), at.began, time.Time{}

	if s.verdict.Allowed {
		s.allowedTill = at.began.Add(trust)
		if s.verdict.Until.Before(s.allowedTill) {
			s.allowedTill = s.verdict.Until
		}
	}
}

// judge decides by the Leases of this name, read at that time.
func (s *shard) judge(name string, leases []coordinationv1.Lease, at span) Verdict {
	until := s.until(leases, at)
	s.see(at.began, sightings(name, leases))

	if s.held {
		if s.heldSince.IsZero() {
			s.heldSince = at.began
		}

		wait := min(max(at.began.Sub(s.heldSince), askAgain), seldom)

		return Verdict{RetryAfter: wait, Reason: "shard " + name + " holds its Lease"}
	}

	s.heldSince = time.Time{}

	if wait := s.absent(at.began); wait > 0 {
		return Verdict{RetryAfter: wait, Reason: "the Lease of shard " + name + " was deleted, and its process may still work"}
	}

	if len(leases) == 0 && at.began.Sub(s.vanished) >= min(2*s.duration, longestWait) {
		until = at.began.Add(longGone) // U5
	}

	if !until.After(at.ended) {
		return Verdict{RetryAfter: askAgain, Reason: "shard " + name + " may take its Lease and work before a move has ended"}
	}

	return Verdict{Allowed: true, Until: until}
}

// nowhere is the namespace of the Lease that a shard may have had before anybody watched.
const nowhere = ""

// sightings returns the Leases of a shard as they are seen.
func sightings(name string, leases []coordinationv1.Lease) []sighting {
	seen := make([]sighting, len(leases))

	for i := range leases {
		rec := lease.RecordOf(&leases[i])
		seen[i] = sighting{leases[i].Namespace, leases[i].UID, rec.Holder == name, rec.Duration}
	}

	return seen
}

// see notes all Leases of the shard's name.
func (s *shard) see(now time.Time, leases []sighting) {
	before := s.holders
	s.held, s.holders = false, map[string]holder{}

	for _, l := range leases {
		if l.held {
			s.held, s.duration, s.own = true, l.duration, l.duration
			s.holders[l.namespace] = holder{lease: l.lease, duration: l.duration}
		}
	}

	for namespace, h := range before {
		_, again := s.holders[namespace]
		gaveUp := slices.ContainsFunc(leases, func(l sighting) bool { return l.namespace == namespace && l.lease == h.lease })

		if again || gaveUp || namespace == nowhere && len(leases) > 0 {
			continue
		}

		if h.vanished.IsZero() {
			h.vanished = now
		}

		s.holders[namespace] = h
	}

	switch {
	case len(leases) > 0:
		s.vanished = time.Time{}
	case s.vanished.IsZero():
		s.vanished = now
	}
}

// absent returns for how long processes are still to be waited for whose Lease was deleted.
func (s *shard) absent(now time.Time) (wait time.Duration) {
	for namespace, h := range s.holders {
		if left := h.vanished.Add(min(2*h.duration, longestWait)).Sub(now); left > 0 {
			wait = max(wait, left)
		} else {
			delete(s.holders, namespace)
		}
	}

	return wait
}
