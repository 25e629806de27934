package proxy

import (
	"encoding/json"
	"io"
	"sync"
	"time"
)

// Watching is what becomes of the events of watches. The zero value passes them on.
type Watching struct {
	// Delay is the time that each event is kept back.
	Delay time.Duration
	// Hold keeps all events back until the proxy is told otherwise; then they arrive in their order.
	Hold bool
	// Drop loses the events. Clients notice only when their watch ends: see [Proxy.CloseWatches].
	Drop bool
}

// policy is the present Watching; changed is closed when there is another one.
type policy struct {
	Watching
	changed chan struct{}
}

// stream passes the events of one watch on as the policy says.
type stream struct {
	proxy *Proxy
	body  io.ReadCloser
	out   *io.PipeWriter
	over  chan struct{}
	end   sync.Once
}

type event struct {
	text json.RawMessage
	at   time.Time
}

// newStream returns what the client reads instead of the API server's events.
func newStream(p *Proxy, body io.ReadCloser) io.ReadCloser {
	in, out := io.Pipe()
	s := &stream{proxy: p, body: body, out: out, over: make(chan struct{})}
	events := make(chan event, 1<<12)
	p.running.Go(func() { s.read(events) })
	p.running.Go(func() { s.write(events) })
	p.track(s)
	return &watchBody{PipeReader: in, stream: s}
}

// watchBody ends the stream when the client is gone.
type watchBody struct {
	*io.PipeReader
	stream *stream
}

// Close implements io.Closer.
func (b *watchBody) Close() error {
	b.stream.close(io.EOF)
	return nil
}

// close ends the watch on both sides; the client sees the error, or an orderly end.
func (s *stream) close(err error) {
	s.end.Do(func() {
		close(s.over)
		_ = s.body.Close() // it is given up anyway
		_ = s.out.CloseWithError(err)
		s.proxy.untrack(s)
	})
}

func (s *stream) read(events chan<- event) {
	defer close(events)
	in := json.NewDecoder(s.body)
	for {
		var text json.RawMessage
		if err := in.Decode(&text); err != nil {
			return // the end of the watch
		}
		select {
		case events <- event{text: append(text, '\n'), at: s.proxy.clock.Now()}:
		case <-s.over:
			return
		}
	}
}

func (s *stream) write(events <-chan event) {
	defer s.close(io.EOF)
	for e := range events {
		drop, ok := s.await(e)
		if !ok {
			return
		}
		if drop {
			continue
		}
		if _, err := s.out.Write(e.text); err != nil {
			return
		}
	}
}

// await blocks until the event is due. ok is false once the watch is over.
func (s *stream) await(e event) (drop, ok bool) {
	for {
		now := s.proxy.watching()
		due := e.at.Add(now.Delay).Sub(s.proxy.clock.Now())
		switch {
		case now.Drop:
			return true, true
		case now.Hold:
			due = time.Hour
		case due <= 0:
			return false, true
		}
		timer := s.proxy.clock.NewTimer(due)
		select {
		case <-now.changed:
		case <-timer.C():
		case <-s.over:
			timer.Stop()
			return false, false
		}
		timer.Stop()
	}
}
