package work

import (
	"container/heap"
	"time"
)

// timer is a time at which an obligation, or one of all obligations with a cause, is due again.
type timer struct {
	at    time.Time
	entry *entry // nil for a cause
	cause Cause
	order int
	// place is one more than its index in the heap; 0 if it is not set.
	place int
}

// set reports whether the time is still to come.
func (n *timer) set() bool { return n.place > 0 }

// timers are sorted by time, and then by the order in which they were set.
type timers struct {
	all    timerHeap
	orders int
}

// set sets a timer, or sets it to another time.
func (x *timers) set(n *timer, at time.Time) {
	x.orders++
	n.at, n.order = at, x.orders

	if n.set() {
		heap.Fix(&x.all, n.place-1)
	} else {
		heap.Push(&x.all, n)
	}
}

// stop stops a timer, if it is set.
func (x *timers) stop(n *timer) {
	if n.set() {
		heap.Remove(&x.all, n.place-1)
	}
}

// first returns the next timer; nil if none is set.
func (x *timers) first() *timer {
	if len(x.all) == 0 {
		return nil
	}

	return x.all[0]
}

// at sets the timer of an obligation.
func (t *Table) at(e *entry, at time.Time) {
	e.timer.entry = e
	t.timers.set(&e.timer, at)
}

type timerHeap []*timer

// Len implements [heap.Interface], as do the others.
func (h *timerHeap) Len() int { return len(*h) }

func (h *timerHeap) Less(i, j int) bool {
	a, b := (*h)[i], (*h)[j]
	if a.at.Equal(b.at) {
		return a.order < b.order
	}

	return a.at.Before(b.at)
}

func (h *timerHeap) Swap(i, j int) {
	(*h)[i], (*h)[j] = (*h)[j], (*h)[i]
	(*h)[i].place, (*h)[j].place = i+1, j+1
}

func (h *timerHeap) Push(x any) {
	n := x.(*timer) //nolint:forcetypeassert // heap is given timers alone
	*h = append(*h, n)
	n.place = len(*h)
}

func (h *timerHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	last.place, old[len(old)-1] = 0, nil
	*h = old[:len(old)-1]

	return last
}
