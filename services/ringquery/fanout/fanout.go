// Package fanout delivers the current state of a topic to any number of readers, each at its own pace.
//
// When a topic changes, a [Hub] reads its state once for all readers. It keeps no queues: a slow reader gets the latest
// state, and its revision counts the changes that the reader has missed.
package fanout

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// fresh is the maximum age of a state that is delivered again without a change. A state can contain values that change
// without a notification, such as ages.
const fresh = time.Second

// Hub delivers the states of topics. Create it with [NewHub]. It is safe for concurrent use.
//
// # Invariants
//
//  1. A waiting reader gets the final state: after the last change, it gets a state that was read after the change.
//  2. The states of one reader never go back.
//  3. A change only wakes the readers of the topic. It does not block the caller.
//  4. A state is read on demand, at most once per change, and all readers share it. They must not change it.
//
// Rejected alternative: a queue per reader. A queue needs a limit, and beyond the limit, the state must be read again
// anyway.
type Hub[T any] struct {
	read  func(ctx context.Context, name string) (T, error)
	same  func(a, b T) bool
	clock clock.PassiveClock

	mu     sync.Mutex // guards the first fields of each topic, too
	topics map[string]*topic[T]
}

// topic is followed by at least one reader.
type topic[T any] struct {
	readers  int
	revision int64         // number of changes
	changed  chan struct{} // closes with the next change

	reading sync.Mutex // held during a read of the state
	last    *snapshot[T]
}

// snapshot is a state and its age.
type snapshot[T any] struct {
	value    T
	revision int64 // it contains at least all changes up to this one
	version  int64 // grows if the value differs from the previous one
	at       time.Time
}

// NewHub returns a hub. It reads states with read, and delivers a state only if it is not the same as the previous one.
// An error of read ends the readers that wait for it. The context of read is that of a reader, but does not end with
// it.
func NewHub[T any](
	read func(ctx context.Context, name string) (T, error), same func(a, b T) bool, clk clock.PassiveClock,
) *Hub[T] {
	return &Hub[T]{read: read, same: same, clock: clk, topics: map[string]*topic[T]{}}
}

// Changed notifies the readers of the topic that its state may have changed. Call it after the change. It does not
// block.
func (h *Hub[T]) Changed(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()

	if t := h.topics[name]; t != nil {
		t.revision++
		close(t.changed)
		t.changed = make(chan struct{})
	}
}

// Follow calls yield with the current state of the topic, and again whenever the state differs from the previous one.
// The revision counts the changes since the first state. Follow ends with the error of yield, or if ctx ends, or if the
// state cannot be read.
func (h *Hub[T]) Follow(ctx context.Context, name string, yield func(state T, revision int64) error) error {
	t := h.join(name)
	defer h.leave(name, t)

	var (
		first int64 // revision of the first state
		seen  *snapshot[T]
	)

	for ctx.Err() == nil {
		if revision, changed := h.now(t); seen != nil && seen.revision == revision {
			select {
			case <-ctx.Done():
			case <-changed:
			}

			continue
		}

		next, err := h.current(ctx, t, name)
		if err != nil {
			return err
		}

		if seen == nil {
			first = next.revision
		}

		if seen == nil || seen.version != next.version {
			if err := yield(next.value, next.revision-first); err != nil {
				return err
			}
		}

		seen = next
	}

	return ctx.Err() //nolint:wrapcheck // the caller's own
}

// join returns the topic with one more reader.
func (h *Hub[T]) join(name string) *topic[T] {
	h.mu.Lock()
	defer h.mu.Unlock()

	t := h.topics[name]
	if t == nil {
		t = &topic[T]{changed: make(chan struct{})}
		h.topics[name] = t
	}
	t.readers++

	return t
}

func (h *Hub[T]) leave(name string, t *topic[T]) {
	h.mu.Lock()
	defer h.mu.Unlock()

	if t.readers--; t.readers == 0 {
		delete(h.topics, name)
	}
}

// now returns the number of changes of the topic, and a channel that closes at the next change.
func (h *Hub[T]) now(t *topic[T]) (revision int64, changed <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()

	return t.revision, t.changed
}

// current returns a state that contains every change so far. It reads the state if necessary.
func (h *Hub[T]) current(ctx context.Context, t *topic[T], name string) (*snapshot[T], error) {
	t.reading.Lock()
	defer t.reading.Unlock()

	revision, _ := h.now(t)
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
