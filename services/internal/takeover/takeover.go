// Package takeover decides whether objects may be taken from a shard without asking it.
//
// It reads the shard's Lease from the API server's storage, because a cache that shows "not available" may be older
// than a shard that has taken its Lease back. It remembers when Leases vanished, because the deletion of a Lease proves
// nothing about the process that held it.
package takeover

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/services/internal/invariants"
	"github.com/clusterring/clusterring/services/internal/lease"
	"github.com/clusterring/clusterring/services/internal/leases"
	"github.com/clusterring/clusterring/services/internal/membership"
)

const (
	// trust is how long an answer "not held" is used without another read. If the read has taken long, because the API
	// server is busy or the ring has many Leases, the answer is used for atRead times as long as the read took, so that
	// reads are a small part of what the API server does, but not longer than longestTrust. It is never used for more than
	// half of the time for which the shard certainly does not work: the other half is left for the write. After half of
	// its time, the answer is renewed, so that nobody waits for the next one.
	trust, atRead, longestTrust = 500 * time.Millisecond, 4, 5 * time.Second
	// few is the maximum number of shards that are read one by one. To find one Lease, the API server scans all Leases, as
	// it does to find all Leases of a ring. Therefore, an answer for a thousand shards costs as much as a few reads of
	// one.
	few = 4
	// lately is how long a shard counts as recently asked about. Objects of many shards are processed in any order.
	lately = time.Second
	// slowly is how long a shard is read by itself after tooLate reads of all have ended when all that they allowed was
	// over, or have failed after as long: the Leases of the ring may be large. One is not enough: the second one may allow
	// much more (U3). As long as a read allows something, it is better than one for each shard, because everyone who waits
	// for it goes on when it ends, and until then leaves the API server alone. A read that takes longestTrust is no
	// better: those who came after it began wait for the next one, for longer than they can.
	slowly, tooLate = 10 * time.Second, 2
	// askAgain is the pause after an answer that cannot tell when it will change. If a shard continues to hold its Lease,
	// the pause grows to seldom: this is the case while a name is held twice, and [Guard.Observe] reports the end.
	askAgain = time.Second
	seldom   = 30 * time.Second
	// forget is how long a shard without a Lease is remembered.
	forget = time.Hour
	// longestWait limits the wait for a process whose Lease was deleted, whatever the durations of the Leases.
	longestWait = 5 * time.Minute
)

// Verdict tells whether objects may be taken from a shard.
type Verdict struct {
	// Allowed is true if the shard does not hold its Lease.
	Allowed bool
	// Until is, by the guard's clock, the time until which the shard certainly does not work, if Allowed is true. Writes
	// that take its objects must be complete by then. Ask again for more time.
	Until time.Time
	// RetryAfter is when to ask again if Allowed is false; it is then always positive.
	RetryAfter time.Duration
	// Reason explains why Allowed is false.
	Reason string
}

// Guard answers for the shards of one ring. It may be used by several goroutines.
//
// Invariants:
//
//  1. No answer allows objects to be taken from a shard more than half a second after the beginning of the read that
//     has shown that its Lease is not held, or, if the read was slow, more than 4 times as long after it as the read
//     took, and more than 5 seconds. An answer ends earlier if a cache shows that the Lease is held again.
//  2. If a Lease was deleted while it was held, its shard keeps its objects until the Lease has been absent for 2×D:
//     only then would a process that renews it have noticed, and have stopped or recreated the Lease. This is at most 5
//     minutes. It applies to each Lease of the name: another Lease, in another namespace or created since, proves
//     nothing about the process. A Lease in a namespace that no longer counts is like a deleted one.
//  3. A shard that has had no Lease since this guard started is treated as if its Lease had been deleted when the guard
//     started, with the longest duration of the ring's Leases.
//  4. No process works as a shard between the answer that allows its objects to be taken and the end of Until. The
//     rules U1 to U5 explain why.
type Guard struct {
	pace   invariants.Pace
	ring   string
	reader client.Reader
	clock  clock.PassiveClock
	began  time.Time

	together *semaphore.Weighted // held during a live read of all shards

	mu      sync.Mutex
	longest time.Duration
	from    membership.Namespaces
	shards  map[string]*shard
}

type shard struct {
	reading *semaphore.Weighted // held during a live read of this shard, so that only one runs at a time

	// Guard.mu guards the rest.
	stranger bool // whether no Lease of the name was ever seen
	held     bool // whether a Lease of the name was held when last seen, cached or live; true before anything was seen
	duration time.Duration
	own      time.Duration // duration while the shard held the Lease; zero if that was not seen
	// who was seen to hold a Lease of the name, by its namespace, and not to have released it
	holders  map[string]holder
	past     past           // results of live reads, while there is at most one Lease
	holdOff  *time.Duration // the last hold-off that a Lease of this name announced
	vanished time.Time      // since when there is no Lease of the name; zero while there is one
	// since when all live reads have found that the shard holds its Lease; zero if the last one did not
	heldSince   time.Time
	asked       time.Time // when the last query came; zero if none has
	read        span      // the read that verdict comes from
	verdict     Verdict
	allowedTill time.Time
	late        int       // how many reads of all shards in a row ended too late for this one
	lateAt      time.Time // when the last of them ended
}

// holder is a process that holds a Lease, or held it when the Lease was deleted.
type holder struct {
	lease    types.UID
	duration time.Duration
	vanished time.Time // zero while the Lease exists
}

// New returns a guard for the named ring. The reader must not be a cache. The guard's observation starts now: pass
// every later view of the ring to [Guard.Observe].
func New(ring string, reader client.Reader, clk clock.PassiveClock) *Guard {
	return &Guard{
		ring: ring, reader: reader, clock: clk, began: clk.Now(),
		longest: lease.DefaultDuration, shards: map[string]*shard{}, together: semaphore.NewWeighted(1),
	}
}

// Observe records the ring's Leases as the cache shows them. It returns the shards that have stopped holding their
// Leases, in the view's order. For these shards, ask again immediately.
func (g *Guard) Observe(view *membership.View) (released []string) {
	g.mu.Lock()
	defer g.mu.Unlock()

	now := g.clock.Now()
	seen := map[string][]membership.Shard{}
	g.from = view.Namespaces()

	for _, s := range view.Shards() {
		seen[s.Name] = append(seen[s.Name], s)
		g.longest = max(g.longest, s.Duration)
	}

	for _, name := range slices.Sorted(maps.Keys(seen)) {
		known := g.shard(name)
		before := known.held

		known.see(now, seen[name])
		known.duration = seen[name][len(seen[name])-1].Duration

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

	g.check()

	return released
}

// shard returns what is known about a shard. The caller holds g.mu.
func (g *Guard) shard(name string) *shard {
	known, ok := g.shards[name]
	if !ok {
		g.forgetStrangers()

		known = &shard{
			stranger: true, held: true, duration: g.longest, vanished: g.began, reading: semaphore.NewWeighted(1),
			holders: map[string]holder{nowhere: {duration: g.longest, vanished: g.began}},
		}
		g.shards[name] = known
	}

	return known
}

// MayTake reports whether objects may be taken from the named shard, based on one live read of its Lease or on an
// answer that is fresh enough. Concurrent queries about one shard share the read. While a valid answer is being
// renewed, all other callers get the old one. If many shards are asked about, one read serves them all. The error is
// that of the API server.
func (g *Guard) MayTake(ctx context.Context, name string) (Verdict, error) {
	g.mu.Lock()
	s, now := g.shard(name), g.clock.Now()
	s.asked = now
	last, good, usable := s.verdict, s.good(now), now.Before(s.allowedTill)
	alone := s.late >= tooLate && now.Sub(s.lateAt) < slowly
	many, reading := !good && !alone && g.asksAboutMany(now), s.reading
	g.mu.Unlock()

	if many {
		reading = g.together
	}

	switch {
	case good:
		return last, nil
	case !usable:
		if err := reading.Acquire(ctx, 1); err != nil {
			return Verdict{}, fmt.Errorf("wait for the Lease of shard %s: %w", name, err)
		}
	case !reading.TryAcquire(1):
		return last, nil
	}

	defer reading.Release(1)

	g.mu.Lock()
	last, good = s.verdict, s.good(g.clock.Now()) || s.read.began.After(now)
	g.mu.Unlock()

	if good { // by the read that this query waited for
		return last, nil
	}

	return g.read(ctx, name, s, many)
}

// asksAboutMany reports whether more than a few shards may soon be asked about again. The caller holds g.mu.
func (g *Guard) asksAboutMany(now time.Time) bool {
	n := 0

	for _, s := range g.shards {
		if now.Sub(s.asked) < lately {
			n++
		}

		if n > few { // no need to count a thousand
			return true
		}
	}

	return false
}

// read reads the Leases of the shard, or of many, which are all, and answers for each shard that it has read about.
func (g *Guard) read(ctx context.Context, name string, known *shard, many bool) (Verdict, error) {
	began := g.clock.Now()

	var only []client.ListOption
	if !many {
		only = append(only, client.MatchingFields{"metadata.name": name})
	}

	leases, err := g.list(ctx, only...)

	g.mu.Lock()
	defer g.mu.Unlock()

	byName := map[string][]coordinationv1.Lease{}
	for _, l := range g.counted(leases) {
		byName[l.Name] = append(byName[l.Name], l)
	}

	about := map[string]*shard{}
	if many {
		maps.Copy(about, g.shards)
	}

	about[name] = known // also if it was forgotten meanwhile
	at := span{began, g.clock.Now()}

	for name, s := range about {
		if err == nil {
			s.answer(name, byName[name], at)
		}

		if many {
			s.countLate(at, err == nil && s.verdict.Allowed)
		}
	}

	if err != nil {
		return Verdict{}, fmt.Errorf("read the Lease of shard %s: %w", name, err)
	}

	g.check()

	return known.verdict, nil
}

// list reads Leases of the ring from the API server's storage.
func (g *Guard) list(ctx context.Context, opts ...client.ListOption) ([]coordinationv1.Lease, error) {
	return leases.Read(ctx, g.reader, append(opts, client.MatchingLabels{contract.LabelClusterRing: g.ring})...)
}

// counted returns the Leases that count for the ring, according to the last view. The caller holds g.mu.
func (g *Guard) counted(leases []coordinationv1.Lease) []coordinationv1.Lease {
	return slices.DeleteFunc(leases, func(l coordinationv1.Lease) bool { return !g.from.Count(l.Namespace) })
}

// answer records the state of the Leases of this name, which were read at that time, unless a read that began later has
// already been recorded.
func (s *shard) answer(name string, leases []coordinationv1.Lease, at span) {
	if at.began.Before(s.read.began) {
		return
	}

	s.verdict, s.read, s.allowedTill = s.judge(name, leases, at), at, time.Time{}

	if s.verdict.Allowed {
		s.allowedTill = at.began.Add(min(at.trusted(), s.verdict.Until.Sub(at.began)/2)) //nolint:mnd // half
	}
}

// good reports whether the last answer allows objects to be taken from the shard, and need not be renewed yet.
func (s *shard) good(now time.Time) bool {
	return now.Sub(s.read.began) < s.allowedTill.Sub(s.read.began)/2 //nolint:mnd // half
}

// trusted returns how long the answer of the read may be used at most.
func (at span) trusted() time.Duration { return min(max(trust, atRead*at.took()), longestTrust) }

func (at span) took() time.Duration { return at.ended.Sub(at.began) }

// countLate records whether a read of all shards has ended when all that it allowed for this one was over, or nobody
// could use it for longer.
func (s *shard) countLate(at span, allowed bool) {
	over := at.took() >= longestTrust || !allowed && at.took() >= trust
	if s.held || !s.vanished.IsZero() || !over {
		s.late = 0
		return
	}

	s.late, s.lateAt = s.late+1, at.ended
}

// judge decides based on the Leases of this name, read at that time.
func (s *shard) judge(name string, leases []coordinationv1.Lease, at span) Verdict {
	until := s.until(leases, at)

	seen := make([]membership.Shard, len(leases))
	for i := range leases {
		l := &leases[i]
		rec := lease.RecordOf(l)
		seen[i] = membership.Shard{
			Namespace: l.Namespace, Name: l.Name, UID: l.UID, Holder: rec.Holder, Duration: rec.Duration,
		}
	}

	s.see(at.began, seen)

	if s.held {
		if s.heldSince.IsZero() {
			s.heldSince = at.began
		}

		wait := min(max(at.began.Sub(s.heldSince), askAgain), seldom)

		return Verdict{RetryAfter: wait, Reason: "shard " + name + " holds its Lease"}
	}

	s.heldSince = time.Time{}

	if wait := s.absent(at.began); wait > 0 {
		return Verdict{RetryAfter: wait, Reason: "the Lease of shard " + name + " was deleted, and its process may still " +
			"work"}
	}

	if len(leases) == 0 && at.began.Sub(s.vanished) >= min(2*s.duration, longestWait) {
		until = at.began.Add(longGone) // U5
	}

	if !until.After(at.ended) {
		return Verdict{RetryAfter: askAgain, Reason: "shard " + name + " may take its Lease and start to work before a " +
			"move has ended"}
	}

	return Verdict{Allowed: true, Until: until}
}

// nowhere is the namespace of the Lease that a shard may have had before the guard started.
const nowhere = ""

// see records all Leases of the shard's name, cached or live. If one is held, no earlier answer is used any more.
func (s *shard) see(now time.Time, leases []membership.Shard) {
	before := s.holders
	s.held, s.holders = false, map[string]holder{}

	for _, l := range leases {
		if l.Holder == l.Name {
			s.held, s.duration, s.own, s.allowedTill = true, l.Duration, l.Duration, time.Time{}
			s.holders[l.Namespace] = holder{lease: l.UID, duration: l.Duration}
		}
	}

	for namespace, h := range before {
		_, again := s.holders[namespace]
		gaveUp := slices.ContainsFunc(leases, func(l membership.Shard) bool {
			return l.Namespace == namespace && l.UID == h.lease
		})

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
		s.stranger, s.vanished = false, time.Time{}
	case s.vanished.IsZero():
		s.vanished = now
	}
}

// absent returns how long to wait for processes whose Lease was deleted.
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

// manyStrangers is the number of names without a Lease that are remembered, although they had none since the guard
// started. Users may label objects with any name. Forgetting such a name loses nothing.
const manyStrangers = 256

// forgetStrangers drops the names that never had a Lease, if there are too many. The caller holds g.mu.
func (g *Guard) forgetStrangers() {
	if len(g.shards) < manyStrangers {
		return
	}

	n := 0

	for _, s := range g.shards {
		if s.stranger {
			n++
		}
	}

	if n >= manyStrangers {
		maps.DeleteFunc(g.shards, func(_ string, s *shard) bool { return s.stranger })
	}
}

// check panics if what the guard remembers contradicts its invariants. The caller holds mu.
func (g *Guard) check() {
	if !invariants.Enabled || !g.pace.Due(len(g.shards)) {
		return
	}

	for name, s := range g.shards {
		s.check(name)
	}
}

func (s *shard) check(name string) {
	v := s.verdict

	switch {
	case s.allowedTill.After(s.read.began.Add(s.read.trusted())):
		invariants.Violated("1: the answer for shard %s is trusted for %s", name, s.allowedTill.Sub(s.read.began))
	case s.allowedTill.After(v.Until), !v.Allowed && !s.allowedTill.IsZero():
		invariants.Violated("4: objects of shard %s may be taken until %s, and it may work from %s on", name, s.allowedTill,
			v.Until)
	case !s.read.began.IsZero() && !v.Allowed && v.RetryAfter <= 0:
		invariants.Violated("5: nobody asks again about shard %s", name)
	}

	for namespace, h := range s.holders {
		if h.vanished.IsZero() && !s.held {
			invariants.Violated("2: the Lease of shard %s in %q is held, and the shard holds none", name, namespace)
		}
	}

	if s.held && len(s.holders) == 0 {
		invariants.Violated("2: shard %s holds a Lease of which nothing is known", name)
	}
}
