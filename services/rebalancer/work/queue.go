package work

import (
	"container/heap"
	"container/list"
	"slices"
	"time"
)

// queue contains obligations in the order in which they became due. The zero value is empty.
type queue struct{ entries list.List }

// push adds an obligation that is in no queue.
func (q *queue) push(e *entry) { e.queue, e.spot = q, q.entries.PushBack(e) }

// first returns the first obligation; nil if there is none.
func (q *queue) first() *entry {
	first := q.entries.Front()
	if first == nil {
		return nil
	}

	return first.Value.(*entry) //nolint:forcetypeassert // push adds nothing else
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
	// number is the number of the entry's timer. If the entry has another one, this timer is obsolete.
	number int
	cause  Cause
	order  int
}

// timers are sorted by time, and then by insertion order.
type timers struct {
	all    timerHeap
	orders int
	// room is the number of timers at which obsolete ones are dropped.
	room int
}

// fewTimers is the number of timers up to which obsolete ones are not dropped.
const fewTimers = 1024

// set sets a timer. It drops obsolete timers whenever they may be half of all.
func (t *Table) set(next timer) {
	x := &t.timers
	if len(x.all) >= max(x.room, fewTimers) {
		x.all = slices.DeleteFunc(x.all, t.over)
		x.room = 2 * len(x.all)
		heap.Init(&x.all)
	}

	x.orders++
	next.order = x.orders
	heap.Push(&x.all, next)
}

// over reports whether a timer is obsolete.
func (t *Table) over(n timer) bool {
	if n.entry != nil {
		return n.entry.timer != n.number
	}

	w, ok := t.parked[n.cause]

	return !ok || !w.try.Equal(n.at)
}

// firstTimer returns the next timer that is not obsolete.
func (t *Table) firstTimer() (timer, bool) {
	for len(t.timers.all) > 0 {
		if next := t.timers.all[0]; !t.over(next) {
			return next, true
		}

		heap.Pop(&t.timers.all)
	}

	return timer{}, false
}

// after sets the timer of an obligation.
func (t *Table) after(now time.Time, e *entry, d time.Duration) { t.at(e, now.Add(d)) }

func (t *Table) at(e *entry, at time.Time) {
	e.timer++
	t.set(timer{at: at, entry: e, number: e.timer})
}

type timerHeap []timer

// Len implements [heap.Interface], as do the others.
func (h *timerHeap) Len() int { return len(*h) }

func (h *timerHeap) Less(i, j int) bool {
	a, b := (*h)[i], (*h)[j]
	if a.at.Equal(b.at) {
		return a.order < b.order
	}

	return a.at.Before(b.at)
}

func (h *timerHeap) Swap(i, j int) { (*h)[i], (*h)[j] = (*h)[j], (*h)[i] }

func (h *timerHeap) Push(x any) { *h = append(*h, x.(timer)) } //nolint:forcetypeassert // heap is given timers alone

func (h *timerHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	old[len(old)-1] = timer{}
	*h = old[:len(old)-1]

	return last
}
