package work

import (
	"container/list"
	"time"
)

const (
	// firstMoves is the number of planned moves at a time with which a ring begins: the API server is then busy, but not more than that.
	// leastMoves is the number that is left if moves take long.
	firstMoves = 16
	leastMoves = 4
	// handedOn is how long objects may usually be without a shard in a planned move, if the window is to grow; or queues times as long as the
	// shortest recent move, where the API server needs more time. The shortest move counts less with each one that takes longer, by the factor
	// fades. The usual time is a moving average over smooth moves, as that of TCP (RFC 6298).
	handedOn = 40 * time.Millisecond
	queues   = 1.5
	fades    = 1.003
	smooth   = 8
	// moveCounts is how long a planned move counts. A shard may work on an object for long before it releases it; others need not wait for that.
	moveCounts = time.Second
)

// window limits how many planned moves run at a time, so that an object is without a shard for only a moment: the more moves run, the longer
// each of them waits for the API server. A move runs from the moment at which the object may be drained, until the object is in its place; for
// at most moveCounts.
//
// The window grows and shrinks like the congestion window of TCP (V. Jacobson, Congestion Avoidance and Control, 1988): by one move for each
// object that was handed on in time, and above half of what was too much by one for a whole window of them. If objects are handed on late, the
// window becomes half as large, but only once for all moves that ran at that time. Late is measured against the shortest move, as in TCP Vegas
// (L. Brakmo and L. Peterson, 1995).
type window struct {
	most            float64
	size, threshold float64
	// shortest and usual are how long moves have left their objects without a shard lately; zero if none has ended.
	shortest, usual time.Duration
	running         list.List // of *entry, by the time at which they began
	cut             time.Time // when the window last became smaller
}

// newWindow returns a window that grows up to the given number of moves.
func newWindow(most int) window {
	return window{most: float64(most), size: float64(min(firstMoves, most)), threshold: float64(most)}
}

// planned is what the window knows about an obligation.
type planned struct {
	// began is when its move began; zero if it is not a planned one. released is when it was seen without its shard; zero if it was not.
	began, released time.Time
	// running is its place among the moves that count; nil if it does not count.
	running *list.Element
}

// open reports whether one more move may begin.
func (w *window) open() bool { return w.running.Len() < int(w.size) }

// expire makes the moves no longer count that have counted for long enough, and reports whether there were any.
func (w *window) expire(now time.Time) (some bool) {
	for first := w.first(); first != nil && !now.Before(first.planned.began.Add(moveCounts)); first = w.first() {
		w.leave(first)

		some = true
	}

	return some
}

// first returns the move that began first of those that count; nil if none counts.
func (w *window) first() *entry {
	first := w.running.Front()
	if first == nil {
		return nil
	}

	return first.Value.(*entry) //nolint:forcetypeassert // begin adds nothing else
}

// next returns when the first move no longer counts; ok is false if the window is open.
func (w *window) next() (at time.Time, ok bool) {
	if w.open() {
		return time.Time{}, false
	}

	return w.first().planned.began.Add(moveCounts), true
}

// begin records that an object is about to be drained, or that it is.
func (w *window) begin(now time.Time, e *entry) {
	w.leave(e)
	e.planned = planned{began: now, running: w.running.PushBack(e)}
}

// leave makes a move no longer count.
func (w *window) leave(e *entry) {
	if e.planned.running != nil {
		w.running.Remove(e.planned.running)
		e.planned.running = nil
	}
}

// cancel records that an object is not drained.
func (w *window) cancel(e *entry) {
	w.leave(e)
	e.planned = planned{}
}

// released records that an object was seen without its shard. If the shard has handed it to another shard, its move ends at the same time.
func (w *window) released(now time.Time, e *entry) {
	if !e.planned.began.IsZero() && e.planned.released.IsZero() {
		e.planned.released = now
	}
}

// end records that the obligation has ended.
func (w *window) end(now time.Time, e *entry) {
	if !e.planned.released.IsZero() {
		w.ended(now, e.planned.began, now.Sub(e.planned.released))
	}

	w.cancel(e)
}

// ended adapts the window to a move that began at a time, and has left its object without a shard for so long; zero if its shard has handed it on.
func (w *window) ended(now, began time.Time, took time.Duration) {
	if took > 0 {
		w.measure(took)
	}

	switch {
	case w.usual > max(handedOn, time.Duration(queues*float64(w.shortest))):
		if !began.Before(w.cut) {
			w.size = max(w.size/2, min(leastMoves, w.most))
			w.threshold, w.cut = w.size, now
		}
	case w.size < w.threshold:
		w.size = min(w.size+1, w.most)
	default:
		w.size = min(w.size+1/w.size, w.most)
	}
}

// measure records how long a move has left its object without a shard.
func (w *window) measure(took time.Duration) {
	if w.usual == 0 {
		w.shortest, w.usual = took, took
	}

	w.shortest = min(took, time.Duration(fades*float64(w.shortest)))
	w.usual += (took - w.usual) / smooth
}
