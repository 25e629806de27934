package webhook_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	testclock "k8s.io/utils/clock/testing"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

const largest = 8 << 20

// stalled is a request whose body has a length and never ends by itself. The returned function ends it.
func stalled(length int64) (r *http.Request, end func()) {
	body, sender := io.Pipe()
	r = post(contract.WebhookPath(ring), "")
	r.Body, r.ContentLength = body, length

	return r, func() { _ = sender.Close() }
}

// Callers that stop sending in the middle of large bodies hold a bounded amount of memory, and nobody else's room.
func TestStalledBodiesLeaveRoomForOthers(t *testing.T) {
	for what, length := range map[string]int64{"with a length": largest, "without a length": -1} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h, _ := newHandler(t, fixedRings{ring: newRing(3)})

				var (
					group sync.WaitGroup
					mu    sync.Mutex
					codes = map[int]int{}
					ends  []func()
				)

				begin := time.Now() //nolint:forbidigo // of the bubble

				for range 64 {
					r, end := stalled(length)
					ends = append(ends, end)

					group.Go(func() {
						w := httptest.NewRecorder()
						h.ServeHTTP(w, r)

						mu.Lock()
						defer mu.Unlock()

						codes[w.Code]++
					})
				}

				synctest.Wait()

				w := httptest.NewRecorder()
				h.ServeHTTP(w, post(contract.WebhookPath(ring), reviewOf(plain)))
				require.Equal(t, http.StatusOK, w.Code)
				require.Zero(t, time.Since(begin), "nobody waits for large bodies") //nolint:forbidigo // of the bubble

				time.Sleep(time.Minute) //nolint:forbidigo // in a bubble, where time is not real
				synctest.Wait()

				held := 64 - codes[http.StatusServiceUnavailable]
				require.Positive(t, held)
				require.LessOrEqual(t, held*largest, 32<<20, "the others were refused")

				for _, end := range ends {
					end()
				}

				group.Wait()
			})
		})
	}
}

// A body that does not arrive in time ends the call.
func TestStalledBodyEnds(t *testing.T) {
	h, _ := newHandler(t, fixedRings{ring: newRing(3)})
	h.Clock = testclock.NewFakePassiveClock(time.Now().Add(-time.Minute)) //nolint:forbidigo // its deadlines have passed for the kernel, too

	server := httptest.NewUnstartedServer(h)
	server.EnableHTTP2 = true
	server.StartTLS()

	defer server.Close()

	for what, length := range map[string]int64{"small": 100, "large": largest} {
		t.Run(what, func(t *testing.T) {
			r, end := stalled(length)
			defer end()

			request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+contract.WebhookPath(ring), r.Body)
			require.NoError(t, err)

			request.ContentLength, request.Header = length, r.Header

			response, err := server.Client().Do(request)
			require.NoError(t, err)
			require.NoError(t, response.Body.Close())
			require.Equal(t, 2, response.ProtoMajor)
			require.Equal(t, http.StatusRequestTimeout, response.StatusCode)
		})
	}
}
