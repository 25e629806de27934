package obligation

import (
	"container/heap"
	"slices"
	"time"
)

// queue holds obligations in the order in which they came to be due. The zero value is empty.
type queue struct {
	entries []*entry
	head    int
}

func (q *queue) push(e *entry) { q.entries = append(q.entries, e) }

// pop returns the first one, nil if there is none.
func (q *queue) pop() *entry {
	if q.head == len(q.entries) {
		q.entries, q.head = nil, 0
		return nil
	}

	e := q.entries[q.head]
	q.entries[q.head] = nil

	if q.head++; q.head > 1024 && 2*q.head > len(q.entries) {
		q.entries, q.head = append([]*entry(nil), q.entries[q.head:]...), 0
	}

	return e
}

// timer is when an obligation, or one of all that wait for a cause, is looked at again.
type timer struct {
	at    time.Time
	entry *entry // nil for a cause
	// number is that of the entry's timer; if the entry has another, this one is over.
	number int
	cause  Cause
	order  int
}

// timers are sorted by time, and among equals by the order in which they came.
type timers struct {
	all    timerHeap
	orders int
	over   int // at most so many belong to obligations that have ended
}

// ended notes that an obligation has ended. Its timers are dropped when they are too many.
func (t *timers) ended() {
	if t.over++; t.over < 1024 || 2*t.over < len(t.all) {
		return
	}

	t.over = 0
	t.all = slices.DeleteFunc(t.all, func(n timer) bool { return n.entry != nil && n.entry.timer != n.number })
	heap.Init(&t.all)
}

func (t *timers) push(next timer) {
	t.orders++
	next.order = t.orders
	heap.Push(&t.all, next)
}

func (t *timers) pop() { heap.Pop(&t.all) }

// first returns the next timer that is not over.
func (t *timers) first() (timer, bool) {
	for len(t.all) > 0 {
		next := t.all[0]
		if next.entry == nil || next.entry.timer == next.number {
			return next, true
		}

		heap.Pop(&t.all)
	}

	return timer{}, false
}

// after sets the timer of an obligation.
func (t *Table) after(now time.Time, e *entry, d time.Duration) { t.at(e, now.Add(d)) }

func (t *Table) at(e *entry, at time.Time) {
	e.timer++
	t.timers.push(timer{at: at, entry: e, number: e.timer})
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
