package auth_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"k8s.io/client-go/rest"

	"github.com/clusterring/clusterring/services/ringquery/auth"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

const (
	// places is how many unknown tokens of one address are reviewed at a time.
	places = 8
	// wrong begins the tokens of the flood.
	wrong = "wrong.token."
)

// stuck holds up the reviews of wrong tokens.
type stuck struct {
	n    atomic.Int64
	free chan struct{}
}

func (s *stuck) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		if strings.HasSuffix(req.URL.Path, "tokenreviews") {
			body, err := io.ReadAll(req.Body)
			if err != nil {
				return nil, err
			}

			req.Body = io.NopCloser(bytes.NewReader(body))

			if bytes.Contains(body, []byte(wrong)) {
				s.n.Add(1)

				select {
				case <-s.free:
				case <-req.Context().Done():
					return nil, req.Context().Err()
				}
			}
		}

		return next.RoundTrip(req)
	})
}

func from(ctx context.Context, ip string) context.Context {
	return peer.NewContext(ctx, &peer.Peer{Addr: &net.TCPAddr{IP: net.ParseIP(ip), Port: 1234}})
}

// TestFloodOfWrongTokens: while a flood of wrong tokens waits for the API server, which has room for no more than a few
// requests, calls with right tokens are answered: those of a caller at the same address who was known before, although
// nothing about the token is cached any more, and those of a caller at another address who was not.
func TestFloodOfWrongTokens(t *testing.T) {
	plane := localplane.Shared(t)
	f := &fixture{t: t, plane: plane, timeout: time.Hour} // a slow machine ends no request of the test
	held := &stuck{free: make(chan struct{})}
	config := rest.CopyConfig(plane.Config)
	config.Impersonate.UserName = "system:serviceaccount:sharding-system:ringquery"
	// One known caller, the wrong tokens in progress, and another caller. There is no further request until the test is
	// over.
	config.QPS, config.Burst = 1e-6, 1+places+1
	config.Wrap(held.wrap)
	f.setUp(auth.Options{}, config)

	_, _, known := f.account(true)
	_, _, other := f.account(true)
	attacker, elsewhere := from(t.Context(), "192.0.2.1"), from(t.Context(), "192.0.2.2")
	require.NotEqual(t, codes.Unauthenticated, status.Code(f.ask(withToken(attacker, known), "a")))

	flood, stop := context.WithCancel(attacker)

	var calls sync.WaitGroup
	for i := range 40 * places {
		calls.Go(func() { _ = f.ask(withToken(flood, fmt.Sprint(wrong, i)), "a") })
	}

	t.Cleanup(func() {
		stop()
		close(held.free)
		calls.Wait()
	})
	require.Eventually(t, func() bool { return held.n.Load() == places }, patience, interval)

	// Whether they have the right is another question, to which the API server may not have the answer yet.
	answered := []codes.Code{codes.OK, codes.PermissionDenied}
	require.Contains(t, answered, status.Code(f.ask(withToken(attacker, known), "a")))
	require.Contains(t, answered, status.Code(f.ask(withToken(elsewhere, other), "a")))
	require.EqualValues(t, places, held.n.Load(), "the others wait for a place")
}
