package shard

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"
)

// headerTimeout is how long a client of the probes may take to send its request.
const headerTimeout = 5 * time.Second

// probes answers the probes of a process that waits for a slot. Nil answers none.
type probes struct {
	server  *http.Server
	waiting atomic.Bool
	ended   chan struct{}
}

// answerProbes listens on the address, unless it is empty.
func answerProbes(address string) (*probes, error) {
	if address == "" {
		return nil, nil //nolint:nilnil // nil answers none
	}

	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen for probes: %w", err)
	}

	p := &probes{ended: make(chan struct{})}
	p.server = &http.Server{Handler: p, ReadHeaderTimeout: headerTimeout}
	p.server.SetKeepAlivesEnabled(false) // the next request is for whoever listens then

	go func() {
		defer close(p.ended)

		if err := p.server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			klog.Background().Error(err, "Stopped answering probes", "address", address)
		}
	}()

	return p, nil
}

// ServeHTTP implements [http.Handler].
func (p *probes) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if strings.Contains(req.URL.Path, "ready") && !p.waiting.Load() {
		http.Error(w, "the shard does not know yet whether there is a slot for it, or may not take it: see the log", http.StatusServiceUnavailable)

		return
	}

	_, _ = w.Write([]byte("waiting for a slot\n")) // the prober may have gone
}

// ready sets whether the process could take over.
func (p *probes) ready(could bool) {
	if p != nil {
		p.waiting.Store(could)
	}
}

// close frees the address.
func (p *probes) close() {
	if p == nil {
		return
	}

	_ = p.server.Close() // nobody waits for an answer that matters
	<-p.ended
}
