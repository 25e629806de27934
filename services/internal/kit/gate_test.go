package kit

import (
	"math"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	testclock "k8s.io/utils/clock/testing"
)

// asleep is a clock whose timers never fire, as in a process that was suspended and has just been resumed.
type asleep struct{ *testclock.FakeClock }

// TestNoWriteAfterTheTerm: reads always pass. Writes pass from the first renewal until the term is over, whether the timer of the term has fired or not,
// and until the Lease is released or seen at another holder.
func TestNoWriteAfterTheTerm(t *testing.T) {
	var reached atomic.Int32

	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1) }))
	defer server.Close()

	l, lease := newTestLeadership()
	suspended := &asleep{testclock.NewFakeClock(time.Unix(0, 0))}
	l.clock, lease.clock = suspended, suspended.FakeClock

	client, err := rest.HTTPClientFor(gated(&rest.Config{Host: server.URL}, l))
	require.NoError(t, err)
	t.Cleanup(client.CloseIdleConnections)

	allowed := func(method string) bool {
		before := reached.Load()
		request, err := http.NewRequestWithContext(t.Context(), method, server.URL, http.NoBody)
		require.NoError(t, err)

		response, err := client.Do(request)
		if err != nil {
			require.ErrorIs(t, err, errNotLeader)
			require.Equal(t, before, reached.Load())

			return false
		}

		require.NoError(t, response.Body.Close())

		return true
	}
	writes := []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}
	expect := func(want bool) {
		t.Helper()

		for _, method := range writes {
			require.Equal(t, want, allowed(method), method)
		}

		require.True(t, allowed(http.MethodGet))
	}

	expect(false) // it was never elected
	require.NoError(t, l.Create(t.Context(), held))
	expect(true)

	suspended.SetTime(suspended.Now().Add(l.term - time.Nanosecond))
	expect(true)
	suspended.SetTime(suspended.Now().Add(time.Nanosecond))
	expect(false)

	require.NoError(t, l.Update(t.Context(), held))
	expect(true)

	lease.record.HolderIdentity = "another"
	_, _, err = l.Get(t.Context())
	require.NoError(t, err)
	expect(false)

	require.NoError(t, l.Update(t.Context(), held))
	expect(true)
	l.workersGone.close()

	none := held
	none.HolderIdentity = ""
	require.NoError(t, l.Update(t.Context(), none))
	expect(false)
}

// AfterFunc returns a timer that never fires.
func (a asleep) AfterFunc(time.Duration, func()) clock.Timer {
	return a.NewTimer(time.Duration(math.MaxInt64))
}
