package work

// Phase is the state of an obligation. The zero value means that there is no obligation.
type Phase uint8

// The phases.
const (
	// None means that the object is not known to be out of place.
	None Phase = iota
	// Due means that the obligation waits for a worker.
	Due
	// Moving means that a worker has the obligation: it reads, decides and writes.
	Moving
	// Draining means that the obligation waits for the object's shard to acknowledge the drain.
	Draining
	// Parked means that the obligation waits for its cause to change.
	Parked
	// Delayed means that the obligation waits for a pause to end, after a failure.
	Delayed
)

var phases = [...]string{"none", "due", "moving", "draining", "parked", "delayed"}

func (p Phase) String() string { return phases[p] }

// Event is what happens to an obligation.
type Event uint8

// The events. The worker that has the obligation reports all events except the first four.
const (
	// SeenMisplaced means that the object was seen out of place, or is not known to be in its place.
	SeenMisplaced Event = iota
	// SeenInPlace means that the object was seen in its place, or not to concern the ring, or not to exist.
	SeenInPlace
	// Woken means that the cause or the ring has changed, that the pause has ended, or that a worker has completed a step.
	Woken
	// Taken means that a worker has begun.
	Taken
	// Asked means that the object's shard was asked to release it, and has not released it yet.
	Asked
	// Blocked means that nothing can be done until a cause changes.
	Blocked
	// Failed means that a request has failed, or that a write has not brought the object to its place.
	Failed
)

var events = [...]string{"seen misplaced", "seen in place", "woken", "taken", "asked", "blocked", "failed"}

func (e Event) String() string { return events[e] }

// next returns the phase after an event. It returns [None] only for [SeenInPlace], or if p is None.
//
// While a worker has the object, sights of it only make the worker's result subject to another look: the worker itself reports
// the object as it is after the write, and the table compares it with earlier sights by the resource version.
func next(p Phase, e Event) Phase {
	after, reports := results[e]

	switch {
	case e == SeenInPlace, p == None && e != SeenMisplaced:
		return None
	case p == Moving && reports:
		return after
	case p == Moving:
		return Moving
	case p == Delayed && e == SeenMisplaced:
		return Delayed // otherwise a change every few milliseconds would end the pauses
	case e == SeenMisplaced, e == Woken:
		return Due
	case p == Due && e == Taken:
		return Moving
	}

	return p
}

// results are the phases after what a worker reports.
var results = map[Event]Phase{Woken: Due, Asked: Draining, Blocked: Parked, Failed: Delayed}

// News is what has happened while a worker has the object. The zero value means nothing.
type News uint8

// The news.
const (
	// Quiet means that nothing has happened.
	Quiet News = iota
	// Sighted means that the object was seen, or has changed. The later of this and of the worker's report counts, by the
	// version.
	Sighted
	// Arrived means the same, and that the object was seen in its place.
	Arrived
	// Doubted means that something else has changed that the worker may have used for its decision. Of its report, only
	// the object counts.
	Doubted
	// Dropped means that the resource has left the ring.
	Dropped
)

var newsNames = [...]string{"quiet", "sighted", "arrived", "doubted", "dropped"}

func (n News) String() string { return newsNames[n] }

// and returns the news after more of it. A sight does not end a doubt. It shows that the ring has a dropped resource
// again.
func (n News) and(more News) News {
	switch {
	case n >= Doubted && more < Doubted:
		return Doubted
	case n == Dropped:
		return Dropped
	}

	return more
}
