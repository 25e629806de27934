package webhook_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/clusterring/clusterring/services/assigner/webhook"
)

// aged is a server whose connections age, with a client of it.
type aged struct {
	clock  *clocktesting.FakePassiveClock
	server *httptest.Server
	client *http.Client
	dialed atomic.Int32
}

func newAged(t *testing.T, age time.Duration, protocol int, answer http.HandlerFunc) *aged {
	t.Helper()

	a := &aged{clock: clocktesting.NewFakePassiveClock(time.Unix(1e9, 0))}
	a.server = httptest.NewUnstartedServer(webhook.NewAging(answer, age, a.clock))
	a.server.EnableHTTP2 = protocol == 2
	a.server.StartTLS()
	t.Cleanup(a.server.Close)

	a.client = a.server.Client()
	t.Cleanup(a.client.CloseIdleConnections)

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

	req, err := http.NewRequestWithContext(ctx, http.MethodPost, a.server.URL, http.NoBody)
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
		a := newAged(t, time.Second, protocol, reply)

		require.True(t, a.call(t, protocol))
		a.clock.SetTime(a.clock.Now().Add(999 * time.Millisecond))
		require.True(t, a.call(t, protocol))
		require.EqualValues(t, 1, a.dialed.Load(), "a young connection goes on")

		a.clock.SetTime(a.clock.Now().Add(502 * time.Millisecond))
		require.True(t, a.call(t, protocol)) // the last on the old connection
		require.EqualValues(t, 1, a.dialed.Load())
		require.Eventually(t, func() bool { return a.call(t, protocol) && a.dialed.Load() == 2 }, 10*time.Second, time.Millisecond,
			"an old connection is replaced")
	}
}

func TestConnectionsLiveForEver(t *testing.T) {
	a := newAged(t, 0, 2, reply)

	require.True(t, a.call(t, 2))
	a.clock.SetTime(a.clock.Now().Add(1000 * time.Hour))
	require.True(t, a.call(t, 2))
	require.True(t, a.call(t, 2))
	require.EqualValues(t, 1, a.dialed.Load())
}

// Calls that are under way when their connection is told to end are answered, and so are those that come at the same moment.
func TestNoCallFailsWhenConnectionsEnd(t *testing.T) {
	const callers, calls = 16, 20

	entered, release := make(chan struct{}, callers), make(chan struct{})
	a := newAged(t, time.Second, 2, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/held" {
			entered <- struct{}{}
			<-release
		}

		reply(w, r)
	})
	url := a.server.URL

	require.True(t, a.call(t, 2))

	var held sync.WaitGroup
	for range callers {
		held.Go(func() {
			res, err := a.client.Post(url+"/held", "", http.NoBody)
			if assert.NoError(t, err) {
				assert.NoError(t, res.Body.Close())
			}
		})
	}

	for range callers {
		<-entered
	}

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
	close(release)
	held.Wait()
	require.Greater(t, a.dialed.Load(), int32(2), "connections were replaced meanwhile")
}
