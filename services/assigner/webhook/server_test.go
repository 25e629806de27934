package webhook_test

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/clusterring/clusterring/services/assigner/webhook"
	"github.com/clusterring/clusterring/tools/testkit/certtest"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

// serve runs a server with a certificate of the authority until the test ends.
func serve(t *testing.T, authority *certtest.Authority, server *webhook.Server) (address string) {
	t.Helper()

	pair := authority.Server(t, 1, time.Time{}).TLS(t)
	server.Address, server.Log = localplane.FreeAddress(t), logr.Discard()
	server.Clock = cmp.Or[clock.PassiveClock](server.Clock, clock.RealClock{})
	server.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &pair, nil }
	require.ErrorContains(t, server.Ready(nil), "does not listen yet")

	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)

	go func() { ended <- server.Start(ctx) }()

	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	require.Eventually(t, func() bool { return server.Ready(nil) == nil }, 10*time.Second, time.Millisecond)

	return server.Address
}

// A flood on one connection waits at the client. It does not become goroutines and bodies in the server.
func TestConnectionHasFewCallsInProgress(t *testing.T) {
	authority := certtest.NewAuthority(t)

	arrived, proceed := make(chan struct{}, 50), make(chan struct{})
	address := serve(t, authority, &webhook.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/held" {
			arrived <- struct{}{}
			<-proceed
		}
	})})

	conn, err := transport(t, authority).NewClientConn(t.Context(), "https", address)
	require.NoError(t, err)

	defer conn.Close()

	get := func(path string) error {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+address+path, http.NoBody)
		if err != nil {
			return err
		}

		res, err := conn.RoundTrip(req)
		if err != nil {
			return err
		}

		return res.Body.Close()
	}

	require.NoError(t, get("/")) // after this, the client knows the limit
	require.Equal(t, 50, conn.Available())

	answers := make(chan error, 50)

	for range 50 {
		go func() { answers <- get("/held") }()
	}

	for range 50 {
		<-arrived
	}

	require.Zero(t, conn.Available())
	close(proceed)

	for range 50 {
		require.NoError(t, <-answers)
	}
}

// Clients that begin something and never end it are disconnected.
func TestHandshakesAndHeadersHaveADeadline(t *testing.T) {
	authority := certtest.NewAuthority(t)
	address := serve(t, authority, &webhook.Server{Handler: http.NotFoundHandler()})

	dial := func(t *testing.T) net.Conn {
		t.Helper()

		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute))) //nolint:forbidigo // of a socket

		return conn
	}

	for what, begin := range map[string]func(t *testing.T) net.Conn{
		"handshake": dial,
		"headers": func(t *testing.T) net.Conn {
			t.Helper()

			conn := tls.Client(dial(t), &tls.Config{RootCAs: authority.Pool(), ServerName: "127.0.0.1",
				MinVersion: tls.VersionTLS12})
			_, err := conn.Write([]byte("GET / HTTP/1.1\r\nHost: a\r\n"))
			require.NoError(t, err)

			return conn
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()

			_, err := io.ReadAll(begin(t))

			require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "the server should end the connection")
		})
	}

	t.Run("large headers", func(t *testing.T) {
		t.Parallel()

		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+address, http.NoBody)
		require.NoError(t, err)
		req.Header.Set("Large", strings.Repeat("x", 64<<10))

		res, err := transport(t, authority).RoundTrip(req)
		if err != nil {
			return // the connection was closed
		}

		defer res.Body.Close()

		require.Equal(t, http.StatusRequestHeaderFieldsTooLarge, res.StatusCode)
	})
}

// With the CA certificates of API servers, nobody else can call, and other CA certificates count as soon as they are
// known.
func TestOnlyAPIServersMayCall(t *testing.T) {
	authority, first, second := certtest.NewAuthority(t), certtest.NewAuthority(t), certtest.NewAuthority(t)

	var pool atomic.Pointer[x509.CertPool]

	pool.Store(first.Pool())

	address := serve(t, authority, &webhook.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}),
		ClientCAs: pool.Load})

	call := func(pairs ...certtest.Pair) error {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+address, http.NoBody)
		require.NoError(t, err)

		res, err := transport(t, authority, pairs...).RoundTrip(req)
		if err == nil {
			require.NoError(t, res.Body.Close())
		}

		return err
	}

	old, recent := first.Client(t, time.Time{}, "kube-apiserver"), second.Client(t, time.Time{}, "kube-apiserver")

	require.NoError(t, call(old))
	require.Error(t, call())
	require.Error(t, call(recent))
	require.Error(t, call(authority.Server(t, 2, time.Time{})))

	pool.Store(second.Pool())
	require.NoError(t, call(recent))
	require.Error(t, call(old))
}

// transport has the certificates, if any, and connections of its own.
func transport(t *testing.T, authority *certtest.Authority, pairs ...certtest.Pair) *http.Transport {
	t.Helper()

	config := &tls.Config{RootCAs: authority.Pool(), MinVersion: tls.VersionTLS12}
	for _, pair := range pairs {
		config.Certificates = append(config.Certificates, pair.TLS(t))
	}

	tr := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}
	t.Cleanup(tr.CloseIdleConnections)

	return tr
}

// aged is a server whose connections age, with a client of it.
type aged struct {
	clock  *clocktesting.FakePassiveClock
	url    string
	client *http.Client
	dialed atomic.Int32
}

func newAged(t *testing.T, protocol int, answer http.HandlerFunc) *aged {
	t.Helper()

	a, authority := &aged{clock: clocktesting.NewFakePassiveClock(time.Unix(1e9, 0))}, certtest.NewAuthority(t)
	tr := transport(t, authority)
	tr.ForceAttemptHTTP2 = protocol == 2
	a.client = &http.Client{Transport: tr}
	a.url = "https://" + serve(t, authority, &webhook.Server{Handler: answer, Clock: a.clock})

	return a
}

// call makes a call and counts whether it needed a new connection. It may run in any goroutine.
func (a *aged) call(t *testing.T, protocol int) bool {
	t.Helper()

	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(got httptrace.GotConnInfo) {
		if !got.Reused {
			a.dialed.Add(1)
		}
	}})

	req, err := http.NewRequestWithContext(ctx, http.MethodPost, a.url, http.NoBody)
	if !assert.NoError(t, err) {
		return false
	}

	res, err := a.client.Do(req)
	if !assert.NoError(t, err) {
		return false
	}

	body, err := io.ReadAll(res.Body)
	_ = res.Body.Close() // was only read

	return assert.NoError(t, err) && assert.Equal(t, "answer", string(body)) && assert.Equal(t, protocol, res.ProtoMajor)
}

func reply(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "answer") }

// A connection lives for its age and at most half as long again, by both protocols.
func TestConnectionsAge(t *testing.T) {
	for _, protocol := range []int{1, 2} {
		a := newAged(t, protocol, reply)

		require.True(t, a.call(t, protocol))
		a.clock.SetTime(a.clock.Now().Add(999 * time.Millisecond))
		require.True(t, a.call(t, protocol))
		require.EqualValues(t, 1, a.dialed.Load(), "a young connection goes on")

		a.clock.SetTime(a.clock.Now().Add(502 * time.Millisecond))
		require.True(t, a.call(t, protocol)) // the last on the old connection
		require.EqualValues(t, 1, a.dialed.Load())
		require.Eventually(t, func() bool { return a.call(t, protocol) && a.dialed.Load() == 2 }, 10*time.Second,
			time.Millisecond,
			"an old connection is replaced")
	}
}

// Calls that are under way when their connection is told to end are answered, and so are those that come at the same
// moment.
func TestNoCallFailsWhenConnectionsEnd(t *testing.T) {
	const callers, calls = 16, 20

	a := newAged(t, 2, reply)
	require.True(t, a.call(t, 2))

	a.clock.SetTime(a.clock.Now().Add(2 * time.Second)) // all are old now

	var busy sync.WaitGroup
	for range callers {
		busy.Go(func() {
			for range calls {
				if !a.call(t, 2) {
					return
				}

				a.clock.SetTime(a.clock.Now().Add(300 * time.Millisecond))
			}
		})
	}

	busy.Wait()
	require.Greater(t, a.dialed.Load(), int32(2), "connections were replaced meanwhile")
}
