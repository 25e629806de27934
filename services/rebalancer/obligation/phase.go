package obligation

// Phase is how far an obligation is. The zero value says that there is none.
type Phase uint8

// The phases.
const (
	// None says that nothing is known to be out of place.
	None Phase = iota
	// Due waits for a worker to decide what to do.
	Due
	// Moving is with a worker, who reads, decides and writes.
	Moving
	// Draining waits for the object's shard to acknowledge.
	Draining
	// Parked waits for its cause to change.
	Parked
	// Delayed waits for some time to pass, after a failure.
	Delayed
)

var phases = [...]string{"none", "due", "moving", "draining", "parked", "delayed"}

func (p Phase) String() string { return phases[p] }

// Event is what happens to an obligation.
type Event uint8

// The events. All but the first four are reported by the worker that has the obligation.
const (
	// SeenMisplaced says that the object was seen out of place, or is not known to be in it.
	SeenMisplaced Event = iota
	// SeenInPlace says that the object was seen in its place, or to be nobody's concern, or not to exist.
	SeenInPlace
	// Woken says that the cause has changed, the time has passed, the ring wants something else, or a worker has come a step further.
	Woken
	// Taken says that a worker has begun.
	Taken
	// Asked says that the object's shard has been asked to give it up, and has not yet.
	Asked
	// Blocked says that nothing can be done until some cause changes.
	Blocked
	// Failed says that a request has failed, or that a write has not brought the object to its place.
	Failed
)

var events = [...]string{"seen misplaced", "seen in place", "woken", "taken", "asked", "blocked", "failed"}

func (e Event) String() string { return events[e] }

// next returns the phase after an event. It never returns [None] but for [SeenInPlace].
//
// While a worker has the object, what is seen meanwhile only makes it look again: the worker's own report says how the object is
// after the write, and the table tells it from what was seen before by the resource version.
func next(p Phase, e Event) Phase {
	switch {
	case e == SeenInPlace:
		return None
	case p == Moving:
		return afterMoving(e)
	case p == None && e != SeenMisplaced:
		return None
	}

	//exhaustive:ignore
	switch e {
	case SeenMisplaced:
		if p == Delayed {
			return Delayed // or a change every few milliseconds would take the pauses away
		}

		return Due
	case Woken:
		return Due
	case Taken:
		if p == Due {
			return Moving
		}
	}

	return p
}

func afterMoving(e Event) Phase {
	//exhaustive:ignore
	switch e {
	case Woken:
		return Due
	case Asked:
		return Draining
	case Blocked:
		return Parked
	case Failed:
		return Delayed
	}

	return Moving
}
