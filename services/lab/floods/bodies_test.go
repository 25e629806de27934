package floods_test

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	// stalledBodies of bodySize are sent nearly to the end, over several connections.
	stalledBodies, connections = 64, 8
	bodySize                   = 8 << 20
)

// stalled is a body whose end does not come before it is closed. It tells when everything else has been sent.
type stalled struct {
	io.Reader

	sent  func()
	ended chan struct{}
	end   func()
}

func newStalled(sent func()) *stalled {
	ended := make(chan struct{})

	return &stalled{
		Reader: io.LimitReader(zeros{}, bodySize-1), sent: sync.OnceFunc(sent),
		ended: ended, end: sync.OnceFunc(func() { close(ended) }),
	}
}

func (s *stalled) Read(into []byte) (int, error) {
	n, err := s.Reader.Read(into)
	if errors.Is(err, io.EOF) {
		s.sent()
		<-s.ended
	}

	return n, err
}

func (s *stalled) Close() error {
	s.end()
	return nil
}

type zeros struct{}

func (zeros) Read(into []byte) (int, error) { return len(into), nil }

// caller returns a client with a connection of its own.
func caller(dialer *net.Dialer) *http.Client {
	transport := &http.Transport{
		DialContext:     dialer.DialContext,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // whoever calls here trusts everybody
		Protocols:       new(http.Protocols),
	}
	transport.Protocols.SetHTTP2(true)

	return &http.Client{Transport: transport}
}

// TestStalledBodies: callers of the webhook send large bodies nearly to the end, and wait. Each gets an error in the end, and
// meanwhile, others get answers.
func TestStalledBodies(t *testing.T) {
	h := begin(t)
	url := h.registered("stalled-bodies")

	var (
		calls    sync.WaitGroup
		statuses = make(chan int, stalledBodies)
		began    = make(chan struct{}, stalledBodies)
	)

	for range connections {
		client := caller(from(0))
		t.Cleanup(client.CloseIdleConnections)

		for range stalledBodies / connections {
			request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, newStalled(func() { began <- struct{}{} }))
			require.NoError(t, err)

			request.ContentLength = bodySize
			request.Header.Set("Content-Type", "application/json")
			calls.Go(func() {
				response, err := client.Do(request)
				if err != nil {
					statuses <- 0 // the server has ended the stream or the connection
					return
				}

				_ = response.Body.Close()
				statuses <- response.StatusCode
			})
		}
	}

	<-began // at least one body is complete but for its end

	client := caller(&net.Dialer{})
	t.Cleanup(client.CloseIdleConnections)

	review := fmt.Appendf(nil, `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"1"}}`)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, bytes.NewReader(review))
	require.NoError(t, err)
	request.Header.Set("Content-Type", "application/json")
	response, err := client.Do(request)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusOK, response.StatusCode, "small bodies have room of their own")

	for range stalledBodies {
		require.NotEqual(t, http.StatusOK, <-statuses)
	}

	calls.Wait()
	h.survived()
}
