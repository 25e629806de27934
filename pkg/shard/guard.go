package shard

import (
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
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
//
// A worker that has begun enters each object that it may touch, judges the cached state of the object, and leaves. It enters
// before it reads, so that no acknowledgement happens in between. The last worker to leave acknowledges. If the worker that saw
// the drain waited instead, it would block one worker of its controller for as long as another controller works.
type guard struct {
	mu       sync.Mutex
	objects  map[objectKey]*object
	departed []departure // ring buffer of acknowledgements, oldest at next
	next     int
}

type objectKey struct {
	schema.GroupKind
	types.NamespacedName
}

type object struct {
	inside        int
	drain         drain // the newest that was seen; zero: none
	acknowledging bool
	acknowledged  string // version in which it was released; empty: it was not
}

type departure struct {
	key     objectKey
	version string
}

// drain is a request to release an object.
type drain struct {
	version string // version in which the object carries the drain label
	next    string // the next shard; empty: the assigner chooses when the labels are gone
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
	absent          // not in the cache, and not because it was released
	gone            // not in the cache because it was released
	foreign         // belongs to another shard
	drained         // to be released as soon as no worker is inside
	unclear         // the cache is behind, or an acknowledgement is in flight; check again
)

func newGuard() *guard {
	return &guard{objects: map[objectKey]*object{}}
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

	return g.objects[key].judge(v)
}

func (o *object) judge(v view) verdict {
	if v.version == "" {
		return o.judgeAbsence()
	}

	if o.acknowledged != "" && older(v.version, o.acknowledged) {
		return unclear
	}

	if o.drain.version != "" && older(v.version, o.drain.version) {
		return unclear
	}

	if !v.owned {
		o.drain = drain{}

		return foreign
	}

	o.acknowledged = ""
	if v.draining {
		o.drain = drain{v.version, v.next}

		return drained
	}

	o.drain = drain{}
	if o.acknowledging {
		return unclear
	}

	return run
}

func (o *object) judgeAbsence() verdict {
	if o.acknowledging {
		// The cache may show the acknowledgement before its answer arrives.
		return unclear
	}

	o.drain = drain{}
	if o.acknowledged != "" {
		return gone
	}

	return absent
}

// leave takes a worker out of the object. If the object is to be released and this worker was the last one inside, leave returns
// the drain: the caller must try to release the object, and report the result with settle.
func (g *guard) leave(key objectKey) (asked drain, acknowledge bool) {
	g.mu.Lock()
	defer g.mu.Unlock()

	o := g.objects[key]

	o.inside--
	if o.inside == 0 && o.drain.version != "" && !o.acknowledging {
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
}

// settle ends an attempt to acknowledge.
func (g *guard) settle(key objectKey, result outcome) {
	g.mu.Lock()
	defer g.mu.Unlock()

	o := g.objects[key]

	o.acknowledging = false
	if result.deleted {
		o.drain = drain{}
	}

	if result.version != "" {
		o.drain, o.acknowledged = drain{}, result.version
		g.remember(departure{key: key, version: result.version})
	}
	g.tidy(key, o)
}

// remember records that an object was released. If there are too many records, it drops the oldest one.
func (g *guard) remember(d departure) {
	if len(g.departed) < rememberedAcknowledgements {
		g.departed = append(g.departed, d)

		return
	}

	oldest := g.departed[g.next]
	g.departed[g.next] = d
	g.next = (g.next + 1) % len(g.departed)

	if o := g.objects[oldest.key]; o != nil && o.acknowledged == oldest.version {
		o.acknowledged = ""
		g.tidy(oldest.key, o)
	}
}

// tidy drops an object that has no state to keep.
func (g *guard) tidy(key objectKey, o *object) {
	if *o == (object{}) {
		delete(g.objects, key)
	}
}

// older reports whether version a was written before version b of the same object. Versions that are not numbers cannot be
// compared: a then counts as current, and only the precondition of every write protects the object.
func older(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	if err != nil {
		return false
	}

	return order < 0
}
