package move

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

const (
	// shortPatience and longPatience limit how long the API server may take for a write. The API server calls the webhooks of others during a write. If one of several
	// endpoints of such a webhook is gone, calls that go there hang, and the next attempt is likely to find another endpoint.
	shortPatience = time.Second
	longPatience  = patience - time.Second
	// lateAfter is how long a failed write must have taken to count as unanswered.
	lateAfter = shortPatience / 2
	// usually is how many times as long as the last successful write a write may take.
	usually = 4
)

// Answers determines how long writes of each resource may take, and keeps writes that hang from occupying all workers. Its methods are safe for
// concurrent use.
//
// Invariants:
//
//  1. A write that was not answered doubles the timeout of later writes of its resource, and a successful write adapts it to the time that
//     was needed. Writes that are always slow therefore succeed.
//  2. After a write that was not answered, only one move of the resource begins at a time, until a write is answered.
type Answers struct {
	// answered is called when writes of a resource are answered again.
	answered func(schema.GroupResource)

	mu  sync.Mutex
	all map[schema.GroupResource]*answers
}

type answers struct {
	patience time.Duration
	// late reports whether the last write was not answered in time. moving counts the moves in progress.
	late   bool
	moving int
}

// NewAnswers returns Answers that know no write. The function answered is called when writes of a resource are answered again.
func NewAnswers(answered func(schema.GroupResource)) *Answers {
	return &Answers{answered: answered, all: map[schema.GroupResource]*answers{}}
}

// Begin begins a move of an object of the resource. If ok is true, end must be called when the move has ended. patience is how long the API server may take for
// its write.
func (a *Answers) Begin(of schema.GroupResource) (patience time.Duration, end func(), ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()

	now := a.all[of]
	if now == nil {
		now = &answers{patience: shortPatience}
		a.all[of] = now
	}

	if now.late && now.moving > 0 {
		return 0, nil, false
	}

	now.moving++

	return now.patience, func() {
		a.mu.Lock()
		defer a.mu.Unlock()

		now.moving--
	}, true
}

// Answer records that a write that might take as long as patience took so long, with its error. The move of the write must not have ended.
func (a *Answers) Answer(of schema.GroupResource, patience, took time.Duration, err error) {
	a.mu.Lock()

	now := a.all[of]
	before := now.late

	switch now.late = err != nil && took >= lateAfter; {
	case now.late:
		now.patience = max(now.patience, min(2*patience, longPatience))
	case err == nil:
		now.patience = min(max(shortPatience, usually*took), longPatience)
	}

	again := before && !now.late
	a.mu.Unlock()

	if again {
		a.answered(of)
	}
}
