// Package fanout tells any number of readers how a thing is now, each at the reader's own pace.
//
// A [Hub] is told that something has changed, and reads how it is once for all who follow it. It keeps no queue: a reader that
// is slow gets the latest state and learns how much it has missed.
package fanout

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// fresh is how old a state may be that a reader gets although nothing has changed since: it may hold things that change
// without being told, such as ages.
const fresh = time.Second

// Hub hands out the states of things that have names. Make it with [NewHub]. It is safe for concurrent use.
//
// # Invariants
//
//  1. A reader that waits gets every last state: after the last change there is a state that was read later.
//  2. The states of one reader never go back.
//  3. A change costs as much as waking the readers of that thing, and is no wait for who tells of it.
//  4. A state is read when a reader wants it, once per change at most while nobody waits longer than for that reading. It is
//     shared: no reader may change it.
//
// A queue per reader was refused: it has to be cut somewhere, and what is left out must be read anew all the same.
type Hub[T any] struct {
	read  func(ctx context.Context, name string) (T, error)
	same  func(a, b T) bool
	clock clock.PassiveClock

	mu     sync.Mutex
	topics map[string]*topic[T]
}

// topic is one thing that is followed.
type topic[T any] struct {
	readers int // guarded by the hub's mu

	mu       sync.Mutex
	revision int64         // how many changes there were
	changed  chan struct{} // closes with the next change

	reading sync.Mutex // held while the state is read
	last    *snapshot[T]
}

// snapshot is a state and what it includes.
type snapshot[T any] struct {
	value    T
	revision int64 // all changes up to this one, at least
	version  int64 // grows if the value is not the same as the one before
	at       time.Time
}

// NewHub returns a hub that reads states with read and tells by same whether two are worth two messages. An error of read
// ends the readers that it meets. Its context is that of a reader, but does not end with it.
func NewHub[T any](
	read func(ctx context.Context, name string) (T, error), same func(a, b T) bool, clk clock.PassiveClock,
) *Hub[T] {
	return &Hub[T]{read: read, same: same, clock: clk, topics: map[string]*topic[T]{}}
}

// Changed says that the thing of this name is not as it was, or may not be. Call it after the change. It returns at once.
func (h *Hub[T]) Changed(name string) {
	h.mu.Lock()
	t := h.topics[name]
	h.mu.Unlock()

	if t == nil {
		return
	}

	t.mu.Lock()
	defer t.mu.Unlock()
	t.revision++
	close(t.changed)
	t.changed = make(chan struct{})
}

// Follow returns a reader of the thing of this name. It must be closed.
func (h *Hub[T]) Follow(name string) *Reader[T] {
	h.mu.Lock()
	defer h.mu.Unlock()

	t := h.topics[name]
	if t == nil {
		t = &topic[T]{changed: make(chan struct{})}
		h.topics[name] = t
	}
	t.readers++

	return &Reader[T]{hub: h, topic: t, name: name}
}

// Readers returns how many readers are open.
func (h *Hub[T]) Readers() int {
	h.mu.Lock()
	defer h.mu.Unlock()

	n := 0
	for _, t := range h.topics {
		n += t.readers
	}

	return n
}

// Reader follows one thing. It is for one goroutine.
type Reader[T any] struct {
	hub   *Hub[T]
	topic *topic[T]
	name  string

	begun   bool
	first   int64 // revision of the first state
	seen    int64 // revision of the last one
	version int64 // that of the last one
}

// State is how a thing is.
type State[T any] struct {
	// Value is shared with other readers.
	Value T
	// Revision counts the changes since the reader's first state, whose revision is 0.
	Revision int64
}

// Next returns the state as it is, the first time at once, and from then on as soon as it is another than the one before. It
// fails if ctx ends, or with what the state could not be read for.
func (r *Reader[T]) Next(ctx context.Context) (State[T], error) {
	for {
		if err := ctx.Err(); err != nil {
			return State[T]{}, err //nolint:wrapcheck // the caller's own
		}

		revision, changed := r.topic.now()
		if r.begun && revision == r.seen {
			select {
			case <-ctx.Done():
			case <-changed:
			}

			continue
		}

		s, err := r.hub.current(ctx, r.topic, r.name)
		if err != nil {
			return State[T]{}, err
		}

		if !r.begun {
			r.begun, r.first = true, s.revision
		} else if s.version == r.version {
			r.seen = s.revision
			continue
		}
		r.seen, r.version = s.revision, s.version

		return State[T]{Value: s.value, Revision: s.revision - r.first}, nil
	}
}

// Close ends the reader. It must be called once.
func (r *Reader[T]) Close() {
	r.hub.mu.Lock()
	defer r.hub.mu.Unlock()

	r.topic.readers--
	if r.topic.readers == 0 {
		delete(r.hub.topics, r.name)
	}
}

// now returns the number of changes, and a channel that closes with the next.
func (t *topic[T]) now() (revision int64, changed <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()

	return t.revision, t.changed
}

// current returns a state that includes every change so far, and reads it if need be.
func (h *Hub[T]) current(ctx context.Context, t *topic[T], name string) (*snapshot[T], error) {
	t.reading.Lock()
	defer t.reading.Unlock()

	revision, _ := t.now()
	if t.last != nil && t.last.revision == revision && h.clock.Since(t.last.at) < fresh {
		return t.last, nil
	}

	value, err := h.read(context.WithoutCancel(ctx), name)
	if err != nil {
		return nil, fmt.Errorf("follow: %w", err)
	}

	next := &snapshot[T]{value: value, revision: revision, at: h.clock.Now()}
	if t.last != nil {
		next.version = t.last.version
		if !h.same(t.last.value, value) {
			next.version++
		}
	}
	t.last = next

	return next, nil
}
