package proxy

import (
	"encoding/json"
	"io"
	"sync"
	"time"
)

// Watching is what happens to the events of watches. The zero value forwards them.
type Watching struct {
	// Delay is the delay of each event.
	Delay time.Duration
	// Hold holds all events until the policy changes; then they are forwarded in order.
	Hold bool
	// Drop drops the events. Clients notice only when their watch ends: see [Proxy.CloseWatches].
	Drop bool
}

// policy is the current Watching; changed is closed when it is replaced.
type policy struct {
	Watching
	changed chan struct{}
}

// stream forwards the events of one watch according to the policy.
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

// newStream returns the body that the client reads instead of the API server's events.
func newStream(p *Proxy, body io.ReadCloser) io.ReadCloser {
	in, out := io.Pipe()
	s := &stream{proxy: p, body: body, out: out, over: make(chan struct{})}
	events := make(chan event, 1<<12)
	p.mu.Lock()
	p.streams[s] = struct{}{}
	p.mu.Unlock()
	p.running.Go(func() { s.read(events) })
	p.running.Go(func() { s.write(events) })

	return &watchBody{PipeReader: in, stream: s}
}

// watchBody closes the stream when the client is gone.
type watchBody struct {
	*io.PipeReader
	stream *stream
}

// Close implements io.Closer.
func (b *watchBody) Close() error {
	b.stream.close()
	return nil
}

// close closes the watch on both sides; the client sees a regular end.
func (s *stream) close() {
	s.end.Do(func() {
		close(s.over)
		_ = s.body.Close() // nothing to save
		_ = s.out.Close()  // never fails
		s.proxy.mu.Lock()
		defer s.proxy.mu.Unlock()

		delete(s.proxy.streams, s)
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
		case events <- event{text: append(text, '\n'), at: time.Now()}:
		case <-s.over:
			return
		}
	}
}

func (s *stream) write(events <-chan event) {
	defer s.close()

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
		s.proxy.mu.Lock()
		now := s.proxy.policy
		s.proxy.mu.Unlock()

		due := time.Until(e.at.Add(now.Delay))
		switch {
		case now.Drop:
			return true, true
		case now.Hold:
			due = time.Hour
		case due <= 0:
			return false, true
		}

		timer := time.NewTimer(due)
		select {
		case <-now.changed:
		case <-timer.C:
		case <-s.over:
			timer.Stop()
			return false, false
		}
		timer.Stop()
	}
}
