package floods_test

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

const (
	// addresses is how many addresses the attacker has, and callsFromEach how many bodies each sends at a time.
	addresses, callsFromEach = 3, 8
	// connectionsFromEach is how many connections each of them opens.
	connectionsFromEach = 400
)

// from returns a dialer whose connections come from an address of this machine. Each number is another address.
func from(i int) *net.Dialer {
	return &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(i+1))}, Timeout: 10 * time.Second}
}

// form is metadata with many items between a beginning and an end.
type form struct {
	before string
	item   func(i int) string
	after  string
}

// review returns a review of the size with metadata of the form in one of its objects.
func review(size int, field string, f form) []byte {
	var body bytes.Buffer

	fmt.Fprintf(&body,
		`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"1","operation":"UPDATE",%q:{"metadata":{%s`, field, f.before)

	for i := 0; body.Len() < size-100; i++ {
		body.WriteString(f.item(i))
	}

	fmt.Fprintf(&body, `%s}}}}`, f.after)

	return body.Bytes()
}

// hostile returns reviews of the size that become many times as large in memory.
func hostile(size int) map[string][]byte {
	same := func(item string) func(int) string { return func(int) string { return item } }

	return map[string][]byte{
		"owner references":        review(size, "object", form{`"ownerReferences":[{}`, same(`,{}`), `]`}),
		"owner references before": review(size, "oldObject", form{`"ownerReferences":[0`, same(`,0`), `]`}),
		"owner references repeatedly": review(size, "object",
			form{`"name":""`, same(`,"ownerReferences":[` + strings.Repeat(`0,`, 5000) + `0]`), ``}),
		"labels": review(size, "object",
			form{`"labels":{"a":""`, func(i int) string { return fmt.Sprintf(`,"%x":""`, i) }, `}`}),
		"labels in parts": review(size, "object",
			form{`"name":""`, func(i int) string { return fmt.Sprintf(`,"labels":{"%x":"","%[1]xx":""}`, i) }, ``}),
		"a name": review(size, "object", form{`"name":"`, same("\xff"), `"`}),
	}
}

// TestHostileReviews: callers of the webhook send reviews that would be large when decoded, from several addresses.
func TestHostileReviews(t *testing.T) {
	h := begin(t)
	url := h.registered("hostile-reviews")

	for _, size := range []int{60 << 10, bodySize} {
		for what, body := range hostile(size) {
			var calls errgroup.Group

			for i := range addresses {
				client := caller(from(i))
				t.Cleanup(client.CloseIdleConnections)

				for range callsFromEach {
					calls.Go(func() error { return send(t, client, url, body) })
				}
			}

			require.NoError(t, calls.Wait(), what)
			t.Logf("%d KiB of %s: %d MiB", size>>10, what, peakOf(t, h.Process("assigner").PID())>>20)
		}
	}

	h.survived()
}

// send sends a body. The server may refuse it.
func send(t *testing.T, client *http.Client, url string, body []byte) error {
	t.Helper()

	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}

	request.Header.Set("Content-Type", "application/json")

	response, err := client.Do(request)
	if err != nil {
		return nil //nolint:nilerr // the server has ended the stream or the connection
	}

	return response.Body.Close()
}

// TestManyConnections: several addresses open more connections to the webhook than anybody needs, and send half of a
// call on each. A call from another address is answered.
func TestManyConnections(t *testing.T) {
	h := begin(t)

	var group errgroup.Group
	group.SetLimit(50)

	for i := range addresses * connectionsFromEach {
		group.Go(func() error {
			conn, err := tls.DialWithDialer(from(i%addresses), "tcp", h.Webhook,
				&tls.Config{InsecureSkipVerify: true}) //nolint:gosec // it trusts everybody
			if err != nil {
				return nil //nolint:nilerr // the server accepts no more
			}

			t.Cleanup(func() { _ = conn.Close() })

			_, _ = io.WriteString(conn,
				"POST "+contract.WebhookPathPrefix+"a HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: "+
					"100\r\nX-Filler: "+
					strings.Repeat("x", 15<<10)+"\r\n\r\n")

			return nil
		})
	}

	require.NoError(t, group.Wait())

	client := caller(&net.Dialer{})
	t.Cleanup(client.CloseIdleConnections)

	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
		"https://"+h.Webhook+contract.WebhookPathPrefix, http.NoBody)
	require.NoError(t, err)
	response, err := client.Do(request)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusNotFound, response.StatusCode)
	h.survived()
}

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
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // everyone who calls here trusts everybody
		Protocols:       new(http.Protocols),
	}
	transport.Protocols.SetHTTP2(true)

	return &http.Client{Transport: transport}
}

// TestStalledBodies: callers of the webhook send large bodies nearly to the end, and wait. Each gets an error in the
// end, and meanwhile, others get answers.
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

		for i := range stalledBodies / connections {
			request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url,
				newStalled(func() { began <- struct{}{} }))
			require.NoError(t, err)

			if i%2 == 0 { // the others do not say how long they are
				request.ContentLength = bodySize
			}

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
