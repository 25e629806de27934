package shard

import (
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// rememberedAcknowledgements bounds how many objects that left the shard are remembered, so that their disappearance from
// the cache is not taken for a deletion. Far more than can be acknowledged before a cache catches up.
const rememberedAcknowledgements = 1 << 14

// guard knows which objects the workers of this process are inside of, and which of them are given up.
//
//	G1  A drain is acknowledged only while nobody is inside the object.
//	G2  Once anybody has seen the drain, nobody starts, until a newer version shows that it was withdrawn.
//	G3  Once the drain is acknowledged, nobody starts, until a version that is not older than the acknowledgement shows that
//	    the object is this shard's again. Its absence is no deletion.
//
// A worker that has begun its term's work enters each object that it may touch, judges what the cache says of the object, and leaves. It
// enters before it reads, so that no acknowledgement slips in between. Whoever leaves last acknowledges. Making the one
// who saw the drain wait instead would block one of its controller's workers for as long as another controller works.
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
	drain         drain // newest that was seen; zero: none
	acknowledging bool
	acknowledged  string // version in which it was given up; empty: it was not
}

type departure struct {
	key     objectKey
	version string
}

// drain asks for an object.
type drain struct {
	version string // in which the object carries the drain label
	next    string // the shard that comes next; empty: whoever is asked when the labels are gone
}

// view is what the cache says of an object.
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
	absent          // not in the cache, and not because it was given up
	gone            // not in the cache because it was given up
	foreign         // another shard's
	drained         // to be given up as soon as nobody is inside
	unclear         // the cache is behind, or an acknowledgement is on its way; look again
	early           // what follows the object is not in the cache yet; look again soon
)

func newGuard() *guard {
	return &guard{objects: map[objectKey]*object{}}
}

// enter puts a worker inside the object. It may do nothing to it until judge says run.
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

// judge says what a worker that is inside the object may do, given what it has read since it entered.
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
		// The cache may know of the acknowledgement before its answer has arrived.
		return unclear
	}
	o.drain = drain{}
	if o.acknowledged != "" {
		return gone
	}

	return absent
}

// leave takes a worker out of the object. If the object is to be given up and the worker was the last one inside, it
// returns the drain: the caller must try to give the object up, and report by settle.
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

// outcome is how an attempt to acknowledge ended.
type outcome struct {
	version string // in which the object was given up; empty: it was not
	deleted bool   // there was no object any more
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

// remember notes that an object was given up and forgets the oldest such note if there are too many.
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

// tidy forgets an object of which there is nothing to know.
func (g *guard) tidy(key objectKey, o *object) {
	if *o == (object{}) {
		delete(g.objects, key)
	}
}

// older reports whether version a was written before version b of the same object. Versions that are no numbers cannot be
// compared; then a is taken for current, and the precondition of every write is what remains.
func older(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	if err != nil {
		return false
	}

	return order < 0
}
