// Package quota limits what the clients of a server take at a time, so that no address can take everything.
//
// [Quota] refuses what cannot be had, such as connections. [Queues] let calls wait, each in the queue of its address.
package quota

import (
	"net"
	"sync"
)

// Quota limits what is taken at a time, in all and from each address, so that one client cannot take everything. What cannot be had is
// refused: nobody waits. Create it with [New]. It is safe for concurrent use.
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

// Take takes n for a client, and returns how to give it back, once. ok is false if there is not as much left. The port of the client does
// not count.
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

// Listen returns a listener that closes connections beyond the quota as soon as they are accepted. Connections that wait to be accepted
// would cost their clients time.
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
