package quota

import (
	"context"
	"sync"

	"golang.org/x/sync/semaphore"
)

// Queues let a few calls of each address proceed at a time. Others wait in the queue of their address. Create them with [NewQueues]. They
// are safe for concurrent use.
type Queues struct {
	each int64

	mu   sync.Mutex
	from map[string]*queue
}

// queue are the calls from one address, with and without a place.
type queue struct {
	*semaphore.Weighted

	calls int
}

// NewQueues returns empty queues. each is how many calls of an address proceed at a time.
func NewQueues(each int64) *Queues { return &Queues{each: each, from: map[string]*queue{}} }

// Enter waits for a place for a call of the client, and returns how to leave it. It returns the error of ctx if that ends before. The port of
// the client does not count.
func (q *Queues) Enter(ctx context.Context, client string) (leave func(), err error) {
	address := Host(client)
	own := q.join(address)

	if err := own.Acquire(ctx, 1); err != nil {
		q.part(address, own)
		return nil, err //nolint:wrapcheck // that of ctx
	}

	return func() {
		own.Release(1)
		q.part(address, own)
	}, nil
}

func (q *Queues) join(address string) *queue {
	q.mu.Lock()
	defer q.mu.Unlock()

	own := q.from[address]
	if own == nil {
		own = &queue{Weighted: semaphore.NewWeighted(q.each)}
		q.from[address] = own
	}
	own.calls++

	return own
}

func (q *Queues) part(address string, own *queue) {
	q.mu.Lock()
	defer q.mu.Unlock()

	if own.calls--; own.calls == 0 {
		delete(q.from, address)
	}
}
