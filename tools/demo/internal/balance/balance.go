// Package balance stands in for a Kubernetes Service: it forwards TCP connections to one of several replicas, and to the
// next one where a replica does not answer.
package balance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
)

// Forwarder forwards connections. Listen makes it; it is safe for concurrent use.
type Forwarder struct {
	listener net.Listener
	replicas []string
	next     atomic.Uint32
	running  sync.WaitGroup
	dialing  context.Context
	stop     context.CancelFunc

	mu     sync.Mutex
	open   map[net.Conn]struct{}
	closed bool
}

// Listen starts to forward connections from a free port of the loopback interface to the replicas, in turn.
func Listen(replicas ...string) (*Forwarder, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for connections to forward: %w", err)
	}

	f := &Forwarder{listener: listener, replicas: replicas, open: map[net.Conn]struct{}{}}
	f.dialing, f.stop = context.WithCancel(context.Background())
	f.running.Go(f.serve)

	return f, nil
}

// Address returns host:port.
func (f *Forwarder) Address() string { return f.listener.Addr().String() }

// Close ends all connections and returns when nothing is forwarded any more.
func (f *Forwarder) Close() error {
	err := f.listener.Close()
	f.stop()
	f.mu.Lock()

	f.closed = true
	for conn := range f.open {
		_ = conn.Close() // it is given up anyway
	}
	f.mu.Unlock()
	f.running.Wait()

	if err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("stop to listen for connections to forward: %w", err)
	}

	return nil
}

func (f *Forwarder) serve() {
	for {
		conn, err := f.listener.Accept()
		if err != nil {
			return // closed
		}
		f.running.Go(func() { f.forward(conn) })
	}
}

// forward copies in both directions until one side has closed. Without a replica the connection ends at once.
func (f *Forwarder) forward(client net.Conn) {
	replica := f.dial()
	if replica == nil {
		_ = client.Close() // there is nobody to tell
		return
	}

	if !f.track(client, replica) {
		return
	}

	var both sync.WaitGroup
	both.Go(func() { pipe(replica, client) })
	both.Go(func() { pipe(client, replica) })
	both.Wait()
	f.untrack(client, replica)
}

// pipe copies until the source ends, and then closes both: neither TLS nor HTTP uses half of a connection.
func pipe(to, from net.Conn) {
	_, _ = io.Copy(to, from) // a broken connection is an ended one
	_, _ = to.Close(), from.Close()
}

// dial returns a connection to the first replica that answers, and nil if none does.
func (f *Forwarder) dial() net.Conn {
	first, dialer := int(f.next.Add(1)), net.Dialer{}
	for i := range f.replicas {
		conn, err := dialer.DialContext(f.dialing, "tcp", f.replicas[(first+i)%len(f.replicas)])
		if err == nil {
			return conn
		}
	}

	return nil
}

func (f *Forwarder) track(conns ...net.Conn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()

	for _, conn := range conns {
		if f.closed {
			_ = conn.Close() // it is given up anyway
			continue
		}

		f.open[conn] = struct{}{}
	}

	return !f.closed
}

func (f *Forwarder) untrack(conns ...net.Conn) {
	f.mu.Lock()
	defer f.mu.Unlock()

	for _, conn := range conns {
		delete(f.open, conn)
	}
}
