package process_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/tools/testkit/process"
)

// healthz answers like a service.
func healthz(t *testing.T, status func() int) process.Readiness {
	t.Helper()

	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status())
		_, _ = w.Write([]byte("[+]ping ok\n[-]caches failed: reason withheld\n[-]webhook failed: reason withheld\n"))
	}))
	t.Cleanup(server.Close)

	return process.Readiness{URL: server.URL, Client: server.Client()}
}

func TestAwaitReady(t *testing.T) {
	p := start(t, "obey", nil)

	var asked atomic.Int32

	r := healthz(t, func() int {
		if asked.Add(1) < 3 {
			return http.StatusInternalServerError
		}

		return http.StatusOK
	})

	var answers []string

	r.Waiting = func(answer string) { answers = append(answers, answer) }
	require.NoError(t, p.AwaitReady(t.Context(), r))

	failing := "caches failed: reason withheld, webhook failed: reason withheld"
	require.Equal(t, []string{failing, failing, "ready"}, answers)
}

func TestAwaitReadyOfOneThatEnds(t *testing.T) {
	p := start(t, "fail", nil)
	<-p.Exited()
	require.EqualError(t, p.AwaitReady(t.Context(), process.Readiness{}), "fail did not become ready (): it has ended: exit status 3")
}

func TestAwaitReadyEndsWithItsContext(t *testing.T) {
	p := start(t, "obey", nil)
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("somebody has pressed Ctrl-C")
	r := healthz(t, func() int { return http.StatusInternalServerError })
	r.Waiting = func(string) { cancel(cause) }
	require.Equal(t, cause, p.AwaitReady(ctx, r))
}
