// Package quota limits what the clients of a server take at a time, so that no address can take everything.
//
// [Quota] refuses what cannot be had, such as connections. [Queues] let calls wait, each in the queue of its address.
package quota

import (
	"context"
	"net"
	"sync"

	"golang.org/x/sync/semaphore"
)

// Quota limits what is taken at a time, in all and from each address, so that one client cannot take everything. What
// cannot be had is refused: nobody waits. Create it with [New]. It is safe for concurrent use.
type Quota struct {
	all, each int64

	mu    sync.Mutex
	taken int64
	from  map[string]int64
}

// New returns a quota of which nothing is taken. all limits the sum, and each limits what one address may have of it.
func New(all, each int64) *Quota {
	return &Quota{all: all, each: each, from: map[string]int64{}}
}

// Take takes n for a client, and returns how to give it back, once. ok is false if there is not as much left. The port
// of the client does not count.
func (q *Quota) Take(client string, n int64) (give func(), ok bool) {
	address := Host(client)

	q.mu.Lock()
	defer q.mu.Unlock()

	if q.taken+n > q.all || q.from[address]+n > q.each {
		return nil, false
	}

	q.taken += n
	q.from[address] += n

	return func() {
		q.mu.Lock()
		defer q.mu.Unlock()

		q.taken -= n
		if q.from[address] -= n; q.from[address] == 0 {
			delete(q.from, address)
		}
	}, true
}

// Host returns the address of a client without its port.
func Host(client string) string {
	if host, _, err := net.SplitHostPort(client); err == nil {
		return host
	}

	return client
}

// Listen returns a listener that closes connections beyond the quota as soon as they are accepted. Connections that
// wait to be accepted would cost their clients time.
func (q *Quota) Listen(listener net.Listener) net.Listener { return &limited{listener, q} }

type limited struct {
	net.Listener

	quota *Quota
}

// Accept implements net.Listener.
func (l *limited) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err //nolint:wrapcheck // servers compare it
		}

		if give, ok := l.quota.Take(conn.RemoteAddr().String(), 1); ok {
			return &counted{conn, sync.OnceFunc(give)}, nil
		}

		_ = conn.Close()
	}
}

// counted is a connection that takes a place until it is closed.
type counted struct {
	net.Conn

	give func()
}

// Close implements net.Conn.
func (c *counted) Close() error {
	c.give()
	return c.Conn.Close() //nolint:wrapcheck // as that of the connection
}

// Queues let a few calls of each address proceed at a time. Others wait in the queue of their address. Create them with
// [NewQueues]. They are safe for concurrent use.
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

// Enter waits for a place for a call of the client, and returns how to leave it. It returns the error of ctx if that
// ends before. The port of the client does not count.
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
