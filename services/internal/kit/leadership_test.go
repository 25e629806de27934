package kit

import (
	"context"
	"errors"
	"math"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/clock"
	testclock "k8s.io/utils/clock/testing"
)

// lock is a Lease whose server is slow, or fails.
type lock struct {
	clock  *testclock.FakeClock
	takes  time.Duration
	err    error
	record resourcelock.LeaderElectionRecord
}

func (l *lock) Get(context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	return &l.record, nil, l.err
}

func (l *lock) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	return l.Update(ctx, r)
}

func (l *lock) Update(_ context.Context, r resourcelock.LeaderElectionRecord) error {
	l.clock.Step(l.takes)

	if l.err == nil {
		l.record = r
	}

	return l.err
}

func (l *lock) RecordEvent(string) {}
func (l *lock) Identity() string   { return "me" }
func (l *lock) Describe() string   { return "ns/service" }

func newTestLeadership() (*leadership, *lock) {
	fake := testclock.NewFakeClock(time.Unix(0, 0))
	server := &lock{clock: fake}

	return &leadership{Interface: server, workersGone: newLatch(), clock: fake, term: 13 * time.Second,
		lost: make(chan error, 1)}, server
}

var held = resourcelock.LeaderElectionRecord{HolderIdentity: "me"}

// TestTermCountsFromTheRequest: an answer that took long does not prolong the term, nor does a renewal that fails.
func TestTermCountsFromTheRequest(t *testing.T) {
	l, server := newTestLeadership()
	require.NoError(t, l.Create(t.Context(), held))
	server.clock.Step(10 * time.Second)
	server.takes = 2 * time.Second
	require.NoError(t, l.Update(t.Context(), held)) // sent at 10 s, so the term ends at 23 s

	server.takes, server.err = 0, errors.New("no route to host")
	for range 5 {
		server.clock.Step(2 * time.Second)
		require.ErrorIs(t, l.Update(t.Context(), held), server.err)
	}

	server.clock.Step(999 * time.Millisecond)
	require.Empty(t, l.lost)
	server.clock.Step(time.Millisecond)
	require.Len(t, l.lost, 1)
	require.EqualError(t, <-l.lost, "lost the leader Lease ns/service: it could not be renewed for 13s; exiting "+
		"immediately, so that no two instances work")
}

// TestReleaseOnlyWithoutWorkers: what the elector tries after a loss must not hand the Lease over.
func TestReleaseOnlyWithoutWorkers(t *testing.T) {
	l, server := newTestLeadership()
	require.NoError(t, l.Create(t.Context(), held))
	require.ErrorIs(t, l.Update(t.Context(), resourcelock.LeaderElectionRecord{}), errStillWorking)
	require.Equal(t, "me", server.record.HolderIdentity)
	require.Len(t, l.lost, 1)
	require.ErrorContains(t, <-l.lost, "it could not be renewed in time")

	l, server = newTestLeadership()
	require.NoError(t, l.Create(t.Context(), held))
	l.workersGone.close()
	require.NoError(t, l.Update(t.Context(), resourcelock.LeaderElectionRecord{}))
	require.Empty(t, server.record.HolderIdentity)
	server.clock.Step(time.Hour)
	require.Empty(t, l.lost, "a released Lease is not lost")
}

// asleep is a clock whose timers never fire, as in a process that was suspended and has just been resumed.
type asleep struct{ *testclock.FakeClock }

// TestNoWriteAfterTheTerm: reads always pass. Writes pass from the first renewal until the term is over, whether the
// timer of the term has fired or not, and until the Lease is released or seen at another holder.
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
