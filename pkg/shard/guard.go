package shard

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
)

// rememberedAcknowledgements limits how many objects that left the shard are remembered, so that their disappearance from the
// cache does not count as a deletion. It is far more than the shard can acknowledge before a cache catches up.
const rememberedAcknowledgements = 1 << 14

// guard tracks which objects the workers of this process are inside of, and which objects are being released.
//
//	G1  A drain is acknowledged only while no worker is inside the object.
//	G2  After any worker has seen the drain, no worker starts until a newer version shows that the drain was withdrawn.
//	G3  After the drain is acknowledged, no worker starts until a version that is not older than the acknowledgement shows that
//	    the object belongs to this shard again. If the object is absent, it does not count as deleted.
//	G4  If nobody knows whether the drain is acknowledged, because the answer was lost, no worker starts, and neither absence nor a
//	    cached version counts, until a live read has told. As long as the drain is pending, absence does not count either.
//
// A worker that has begun enters each object that it may touch, judges the cached state of the object, and leaves. It enters
// before it reads, so that no acknowledgement happens in between. The last worker to leave acknowledges. If the worker that saw
// the drain waited instead, it would block one worker of its controller for as long as another controller works.
type guard struct {
	mu      sync.Mutex
	objects map[objectKey]*object
	// departed are the objects that were acknowledged last.
	departed *lru.Cache
	// drains are the objects that are to be released, since when they are, and seen counts them.
	drains map[objectKey]time.Time
	seen   int
	clock  clock.PassiveClock
}

type objectKey struct {
	schema.GroupKind
	types.NamespacedName
}

type object struct {
	inside        int
	drain         drain // the newest that was seen; zero: none
	left          bool  // the object has left without a drain, and what the process holds for it is to be released
	acknowledging bool
	acknowledged  string // version in which it was released; empty: it was not
}

// drain is a request to release an object.
type drain struct {
	version string // version in which the object carries the drain label
	next    string // the next shard; empty: the assigner chooses when the labels are gone
	unknown bool   // the answer to the acknowledgement was lost
}

// view is the state of an object in the cache.
type view struct {
	version  string // resourceVersion; empty: not in the cache
	owned    bool   // carries the label of this shard
	draining bool   // carries the drain label
	next     string // the shard that the drain label names; empty: none
}

// verdict is what a worker may do about an object that it is inside of.
type verdict int

const (
	run     verdict = iota
	absent          // not in the cache, and the shard has not released it
	gone            // not in the cache because it was released
	foreign         // belongs to another shard
	drained         // to be released as soon as no worker is inside
	unclear         // the cache is behind, or an acknowledgement is in flight; check again
)

func newGuard() *guard {
	g := &guard{objects: map[objectKey]*object{}, drains: map[objectKey]time.Time{}, clock: clock.RealClock{}}
	g.departed = lru.NewWithEvictionFunc(rememberedAcknowledgements, func(oldest lru.Key, _ any) {
		key, _ := oldest.(objectKey)
		if o := g.objects[key]; o != nil {
			o.acknowledged = ""
			g.tidy(key, o)
		}
	})

	return g
}

// enter puts a worker inside the object. The worker may do nothing to the object until judge returns run.
func (g *guard) enter(key objectKey) {
	g.mu.Lock()
	defer g.mu.Unlock()

	o := g.objects[key]
	if o == nil {
		o = &object{}
		g.objects[key] = o
	}
	o.inside++
}

// judge returns what a worker that is inside the object may do, based on what it has read since it entered.
func (g *guard) judge(key objectKey, v view) verdict {
	g.mu.Lock()
	defer g.mu.Unlock()

	o := g.objects[key]
	defer g.note(key, o)

	return o.judge(v)
}

func (o *object) judge(v view) verdict {
	if o.drain.unknown {
		return unclear
	}

	if v.version == "" {
		return o.judgeAbsence()
	}

	// If versions are not numbers, the cached one counts as current, and only the precondition of every write protects the object.
	if notOlder(v.version, o.acknowledged) == behind || notOlder(v.version, o.drain.version) == behind {
		return unclear
	}

	if !v.owned {
		o.drain = drain{}

		return foreign
	}

	o.acknowledged, o.left = "", false
	if v.draining {
		o.drain = drain{version: v.version, next: v.next}

		return drained
	}

	o.drain = drain{}
	if o.acknowledging {
		return unclear
	}

	return run
}

func (o *object) judgeAbsence() verdict {
	if o.acknowledging || o.drain != (drain{}) {
		// The cache may show the acknowledgement before its answer arrives. The answer tells.
		return unclear
	}

	if o.acknowledged != "" {
		return gone
	}

	return absent
}

// depart records that the object has left the shard without a drain, or is forgotten. If a live read has told, the version is that of
// the object. The caller is inside the object.
func (g *guard) depart(key objectKey, version string) {
	g.mu.Lock()
	defer g.mu.Unlock()

	o := g.objects[key]

	o.left = true
	if version != "" {
		o.acknowledged = version
		g.departed.Add(key, nil)
	}
}

// leave takes a worker out of the object. If the object is to be released and this worker was the last one inside, leave returns
// the drain: the caller must try to release the object, and report the result with settle. If the object has left already, the drain
// is zero.
func (g *guard) leave(key objectKey) (asked drain, acknowledge bool) {
	g.mu.Lock()
	defer g.mu.Unlock()

	o := g.objects[key]

	o.inside--
	if o.inside == 0 && !o.acknowledging && (o.drain != drain{} || o.left) {
		o.acknowledging = true

		return o.drain, true
	}
	g.tidy(key, o)

	return drain{}, false
}

// outcome is the result of an attempt to acknowledge.
type outcome struct {
	version string // version in which the object was released; empty: it was not
	deleted bool   // the object no longer existed
	left    bool   // the object had left already
	unknown bool   // the answer was lost, and nobody has read the object since
}

// settle ends an attempt to acknowledge.
func (g *guard) settle(key objectKey, result outcome) {
	g.mu.Lock()
	defer g.mu.Unlock()

	o := g.objects[key]

	o.acknowledging, o.drain.unknown = false, result.unknown
	if result.deleted {
		o.drain = drain{}
	}

	if result.left {
		o.left = false
	}

	if result.version != "" {
		o.drain, o.left, o.acknowledged = drain{}, false, result.version
		g.departed.Add(key, nil)
	}
	g.note(key, o)
	g.tidy(key, o)
}

// draining reports whether an object is to be released.
func (g *guard) draining() bool {
	g.mu.Lock()
	defer g.mu.Unlock()

	return len(g.drains) > 0
}

// note notes whether an object is to be released, and since when.
func (g *guard) note(key objectKey, o *object) {
	_, noted := g.drains[key]

	switch is := o.drain != (drain{}); {
	case is && !noted:
		g.drains[key] = g.clock.Now()
		g.seen++
	case noted && !is:
		delete(g.drains, key)
	}
}

// pending are the objects that are to be released.
type pending struct {
	waiting, seen int // seen counts also those that were
	oldest        objectKey
	since         time.Time
}

func (g *guard) pending() pending {
	g.mu.Lock()
	defer g.mu.Unlock()

	p := pending{waiting: len(g.drains), seen: g.seen}
	for key, since := range g.drains {
		if p.since.IsZero() || since.Before(p.since) {
			p.oldest, p.since = key, since
		}
	}

	return p
}

// tidy drops an object that has no state to keep.
func (g *guard) tidy(key objectKey, o *object) {
	if *o == (object{}) {
		delete(g.objects, key)
	}
}
