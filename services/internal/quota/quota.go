// Package quota limits what the clients of a server take at a time, so that no address can take everything.
package quota

import (
	"context"
	"net"
	"sync"

	"golang.org/x/sync/semaphore"
)

// Quota limits what is taken at a time, in all and from each address. Create it with [New]. It is safe for concurrent
// use.
type Quota struct {
	all  *semaphore.Weighted
	each int64

	mu   sync.Mutex
	from map[string]*share
}

// share is what one address may have.
type share struct {
	*semaphore.Weighted

	clients int // that have a part of it, or wait for one
}

// New returns a quota of which nothing is taken. all limits the sum, and each limits what one address may have of it.
func New(all, each int64) *Quota {
	return &Quota{all: semaphore.NewWeighted(all), each: each, from: map[string]*share{}}
}

// Take takes n for a client, and returns how to give it back, once. ok is false if there is not as much left: nobody
// waits. The port of the client does not count.
func (q *Quota) Take(client string, n int64) (give func(), ok bool) {
	return q.take(client, n, func(from *semaphore.Weighted) bool { return from.TryAcquire(n) })
}

// Wait takes 1 for a client, and returns how to give it back, once. Clients of one address wait in a queue of their
// own. It returns the error of ctx if that ends before.
func (q *Quota) Wait(ctx context.Context, client string) (give func(), err error) {
	give, ok := q.take(client, 1, func(from *semaphore.Weighted) bool { return from.Acquire(ctx, 1) == nil })
	if !ok {
		return nil, ctx.Err() //nolint:wrapcheck // the caller's own
	}

	return give, nil
}

func (q *Quota) take(client string, n int64, acquire func(*semaphore.Weighted) bool) (give func(), ok bool) {
	address := Host(client)
	own := q.join(address)

	if !acquire(own.Weighted) {
		q.part(address, own)
		return nil, false
	}

	if !acquire(q.all) {
		own.Release(n)
		q.part(address, own)

		return nil, false
	}

	return func() {
		q.all.Release(n)
		own.Release(n)
		q.part(address, own)
	}, true
}

func (q *Quota) join(address string) *share {
	q.mu.Lock()
	defer q.mu.Unlock()

	own := q.from[address]
	if own == nil {
		own = &share{Weighted: semaphore.NewWeighted(q.each)}
		q.from[address] = own
	}
	own.clients++

	return own
}

func (q *Quota) part(address string, own *share) {
	q.mu.Lock()
	defer q.mu.Unlock()

	if own.clients--; own.clients == 0 {
		delete(q.from, address)
	}
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
