package work

import (
	"container/heap"
	"container/list"
	"time"
)

// queue contains obligations in order: those that are due, or those that wait for one cause. An obligation is in one queue at
// most. The zero value is empty.
type queue struct{ entries list.List }

// push adds an obligation that is in no queue.
func (q *queue) push(e *entry) { e.queue, e.spot = q, q.entries.PushBack(e) }

// first returns the first obligation; nil if there is none.
func (q *queue) first() *entry {
	for e := range q.all {
		return e
	}

	return nil
}

// all visits the obligations in order. None may leave the queue meanwhile.
func (q *queue) all(visit func(*entry) bool) {
	for spot := q.entries.Front(); spot != nil; spot = spot.Next() {
		if !visit(spot.Value.(*entry)) { //nolint:forcetypeassert // push adds nothing else
			return
		}
	}
}

// unqueue removes an obligation from its queue, if it is in one.
func (e *entry) unqueue() {
	if e.queue != nil {
		e.queue.entries.Remove(e.spot)
		e.queue, e.spot = nil, nil
	}
}

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
