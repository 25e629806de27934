package work

import (
	"cmp"
	"container/list"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/clusterring/clusterring/services/rebalancer/feed"
)

const (
	// firstWithin and longestWithin limit how long the API server may take for a write. It calls the webhooks of others
	// during a write. If one of several endpoints is gone, calls that go there hang, and another attempt may find another.
	firstWithin   = time.Second
	longestWithin = 29 * time.Second
	// usually is how many times as long as the last successful write a write may take.
	usually = 4
	// hungAfter is how long a write must take at least to count as hanging. Writes of a busy API server take less.
	hungAfter = 250 * time.Millisecond
	// slowAfter is how long a write must take so that its resource gets only its share of the workers.
	slowAfter = time.Second
	// share is the part of the workers for a resource whose writes hang or are slow: one of this many.
	share = 4
	// reversed is how often the queues are looked at in reversed order: once in this many jobs.
	reversed = 4
)

// The queues of a lane, in order.
const (
	ready   = iota // with followers that have all moved
	urgent         // without a shard that works on them, or awaited by an object without one
	regular        // all others
	ranks
)

// lane contains what is due of one resource, and determines how long writes of the resource may take.
//
// A write that was not answered doubles the time for later writes, and a successful one adapts it to the time that it
// took: writes that are always slow succeed. From a write that hangs to the next answer, the lane gets only its share
// of the workers. A job that hangs counts in its lane, and not among the jobs that are limited for all lanes together.
type lane struct {
	of  schema.GroupResource
	due [ranks]queue
	// entries counts the obligations of the resource, and failing those that are failing. working counts the jobs in
	// progress.
	entries, failing, working int
	// within is how long the next write may take; 0 means [firstWithin]. took is how long the last answered one took, and
	// usual the last successful one.
	within, took, usual time.Duration
	// held are its permits by shard; there is no entry without any. planned counts the planned moves of its objects that
	// count.
	held    map[string]*held
	planned int
	// moved counts how often its objects have moved from live shards, or were asked for there.
	moved uint64
	// hanging is since when writes hang; zero if they do not. reason is the error of the first that was given up.
	hanging time.Time
	reason  string
}

// lanes are the lanes of a table. Resources take turns, in the order in which they were first seen.
type lanes struct {
	all []*lane
	// turn is the index of the lane of the last job, and jobs counts the jobs. hung counts the jobs in progress that hang.
	turn, jobs, hung int
}

// Hanging is a resource whose writes the API server does not answer.
type Hanging struct {
	Resource schema.GroupResource
	// Since is when the first write began to hang after the last answer. Reason is what became of one.
	Since  time.Time
	Reason string
	// Objects is the number of objects of the resource that are out of place.
	Objects int
}

func (l *lane) String() string { return l.of.String() }

// lane returns the lane of a resource.
func (t *Table) lane(of schema.GroupResource) *lane {
	for _, l := range t.lanes.all {
		if l.of == of {
			return l
		}
	}

	l := &lane{of: of, held: map[string]*held{}}
	t.lanes.all = append(t.lanes.all, l)

	return l
}

// limit returns how many jobs of the lane may be in progress.
func (l *lane) limit(workers int) int {
	if l.hanging.IsZero() && l.took < slowAfter {
		return workers
	}

	return max(1, workers/share)
}

// waiting returns how many obligations are due.
func (l *lane) waiting() (n int) {
	for i := range l.due {
		n += l.due[i].entries.Len()
	}

	return n
}

// first returns the obligation that is next, and the index of its lane; nil if none is due, or too many jobs are in
// progress.
func (t *Table) first() (e *entry, turn int) {
	x := &t.lanes
	if t.phases[Moving]-x.hung >= t.limits.Workers {
		return nil, 0
	}

	for rank := range ranks {
		if x.jobs%reversed == reversed-1 {
			rank = ranks - 1 - rank
		}

		for i := range x.all {
			turn = (x.turn + 1 + i) % len(x.all)

			l := x.all[turn]
			if e = l.due[rank].first(); e != nil && l.working < l.limit(t.limits.Workers) {
				return e, turn
			}
		}
	}

	return nil, 0
}

// Due reports whether [Table.Take] hands out an obligation now.
func (t *Table) Due() bool {
	e, _ := t.first()

	return e != nil
}

// Ready returns the number of obligations that are due now, without those that have to wait because their writes hang.
func (t *Table) Ready() int { return t.phases[Due] - t.behindHung() }

// Busy returns the number of obligations that are due, or with a worker, without those whose writes hang.
func (t *Table) Busy() int { return t.Ready() + t.phases[Moving] - t.lanes.hung }

// failing returns the number of obligations that are failing.
func (t *Table) failing() (n int) {
	for _, l := range t.lanes.all {
		n += l.failing
	}

	return n
}

// behindHung returns the number of obligations that are due, and whose writes hang.
func (t *Table) behindHung() (n int) {
	for _, l := range t.lanes.all {
		if !l.hanging.IsZero() {
			n += l.waiting()
		}
	}

	return n
}

// Hangs records that the write of an object, with which a worker is busy, hangs. Another worker may take its place.
func (t *Table) Hangs(now time.Time, id feed.ID) {
	defer t.check()

	e, ok := t.entries[id]
	if !ok || e.phase != Moving || e.hung {
		return
	}

	e.hung = true
	t.lanes.hung++

	if e.lane.hanging.IsZero() {
		e.lane.hanging = now
	}
}

// answered records how long a write took, and whether it was given up.
func (t *Table) answered(now time.Time, l *lane, out Outcome) {
	switch {
	case !out.Wrote:
		return
	case out.Unanswered:
		if l.hanging.IsZero() {
			l.hanging = now
		}

		l.within = max(l.within, min(2*out.Took, longestWithin)) //nolint:mnd // as documented

		// Not the newest, because each names another object. Only some errors tell which webhook did not answer.
		if l.reason == "" || !namesWebhook(l.reason) && namesWebhook(out.Reason) {
			l.reason = out.Reason
		}

		return
	case out.Next != Delayed:
		l.usual = out.Took
		l.within = max(firstWithin, min(usually*out.Took, longestWithin))
	}

	l.took, l.hanging, l.reason = out.Took, time.Time{}, ""
}

func namesWebhook(reason string) bool { return strings.Contains(reason, "webhook") }

// hanging returns the resources whose writes hang, and have been given up.
func (t *Table) hanging() (all []Hanging) {
	for _, l := range t.lanes.all {
		if l.reason != "" && l.entries > 0 {
			all = append(all, Hanging{Resource: l.of, Since: l.hanging, Reason: l.reason, Objects: l.entries})
		}
	}

	slices.SortFunc(all, func(a, b Hanging) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Resource.String(), b.Resource.String()))
	})

	return all
}

// queue contains obligations in order: those that are due, or those that wait for one cause. An obligation is in one
// queue at most. The zero value is empty.
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
