package proxy

import (
	"context"
	"encoding/json"
	"io"
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

// stream is the body of a watch as the client reads it: its events, according to the policy.
type stream struct {
	proxy  *Proxy
	body   io.ReadCloser
	events chan event
	rest   []byte          // of the last event
	over   context.Context // ends when the watch is closed
	cancel context.CancelFunc
}

type event struct {
	text json.RawMessage
	at   time.Time
}

// newStream returns the body that the client reads instead of the API server's events.
func newStream(p *Proxy, body io.ReadCloser) io.ReadCloser {
	s := &stream{proxy: p, body: body, events: make(chan event, 1<<12)}
	s.over, s.cancel = context.WithCancel(context.Background())

	p.mu.Lock()
	p.streams[s] = struct{}{}
	p.mu.Unlock()
	p.running.Go(s.receive)

	return s
}

// Close implements io.Closer. It closes the watch on both sides; the client sees a regular end.
func (s *stream) Close() error {
	s.cancel()
	_ = s.body.Close() // nothing to save

	s.proxy.mu.Lock()
	defer s.proxy.mu.Unlock()

	delete(s.proxy.streams, s)

	return nil
}

func (s *stream) receive() {
	defer close(s.events)

	in := json.NewDecoder(s.body)

	for {
		var text json.RawMessage
		if err := in.Decode(&text); err != nil {
			return // the end of the watch
		}

		select {
		case s.events <- event{text: append(text, '\n'), at: time.Now()}:
		case <-s.over.Done():
			return
		}
	}
}

// Read implements io.Reader. It blocks until an event is due.
func (s *stream) Read(p []byte) (int, error) {
	for len(s.rest) == 0 {
		e, more := <-s.events
		if !more {
			return 0, io.EOF
		}

		drop, ok := s.await(e)
		if !ok {
			return 0, io.EOF
		}

		if !drop {
			s.rest = e.text
		}
	}

	n := copy(p, s.rest)
	s.rest = s.rest[n:]

	return n, nil
}

// await blocks until the event is due. ok is false once the watch is over.
func (s *stream) await(e event) (drop, ok bool) {
	for {
		s.proxy.mu.Lock()
		now := s.proxy.policy
		s.proxy.mu.Unlock()

		due := time.Until(e.at.Add(now.Delay))
		switch {
		case s.over.Err() != nil:
			return false, false
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
		case <-s.over.Done():
		}
		timer.Stop()
	}
}
