// Package balance stands in for a Kubernetes Service: it forwards TCP connections to one of several replicas, and to the next one if a
// replica does not answer.
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

// Forwarder forwards connections. Create it with Listen; it is safe for concurrent use.
type Forwarder struct {
	listener net.Listener
	replicas []string
	next     atomic.Uint32
	running  sync.WaitGroup
	stop     context.CancelFunc
}

// Listen starts to forward connections from a free port of the loopback interface to the replicas, in turn.
func Listen(replicas ...string) (*Forwarder, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for connections to forward: %w", err)
	}

	ctx, stop := context.WithCancel(context.Background())
	f := &Forwarder{listener: listener, replicas: replicas, stop: stop}
	f.running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // closed
			}
			f.running.Go(func() { f.forward(ctx, conn) })
		}
	})

	return f, nil
}

// Address returns host:port.
func (f *Forwarder) Address() string { return f.listener.Addr().String() }

// Close ends all connections and returns when nothing is forwarded any more.
func (f *Forwarder) Close() error {
	err := f.listener.Close()
	f.stop()
	f.running.Wait()

	if err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("stop to listen for connections to forward: %w", err)
	}

	return nil
}

// forward copies in both directions until one side has closed or ctx ends. Without a replica, the connection ends at once.
func (f *Forwarder) forward(ctx context.Context, client net.Conn) {
	replica := f.dial(ctx)
	if replica == nil {
		_ = client.Close() // there is nobody to tell
		return
	}

	end := func() { _, _ = client.Close(), replica.Close() } // a broken connection is an ended one
	defer context.AfterFunc(ctx, end)()

	// When one side ends, both end: neither TLS nor HTTP uses half of a connection.
	var both sync.WaitGroup
	both.Go(func() { defer end(); _, _ = io.Copy(replica, client) })
	both.Go(func() { defer end(); _, _ = io.Copy(client, replica) })
	both.Wait()
}

// dial returns a connection to the first replica that answers, nil if there is none.
func (f *Forwarder) dial(ctx context.Context) net.Conn {
	first, dialer := int(f.next.Add(1)), net.Dialer{}
	for i := range f.replicas {
		conn, err := dialer.DialContext(ctx, "tcp", f.replicas[(first+i)%len(f.replicas)])
		if err == nil {
			return conn
		}
	}

	return nil
}
