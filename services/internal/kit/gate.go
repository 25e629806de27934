package kit

import (
	"errors"
	"fmt"
	"net/http"

	"k8s.io/client-go/rest"
)

// errNotLeader refuses a write.
var errNotLeader = errors.New("refused to write: this process does not hold the leader Lease")

// gate lets requests that write pass only while this process may act as the leader. A service of its own ends its process when it loses the
// leader Lease, which stops whatever still runs. One inside another program cannot, so its writes stop here.
type gate struct {
	http.RoundTripper
	leader *leadership
}

// gated returns a config whose clients write only while this process may act as the leader.
func gated(config *rest.Config, leader *leadership) *rest.Config {
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return gate{next, leader} })

	return config
}

// RoundTrip implements [http.RoundTripper].
func (g gate) RoundTrip(r *http.Request) (*http.Response, error) {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
	default:
		if !g.leader.holds() {
			if r.Body != nil {
				_ = r.Body.Close() // as http.RoundTripper demands, also with an error
			}

			return nil, fmt.Errorf("%s %s: %w", r.Method, r.URL.Path, errNotLeader)
		}
	}

	return g.RoundTripper.RoundTrip(r) //nolint:wrapcheck // the client asks for the error of its transport
}
