package webhook_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

// anyPath are paths of which each is registered.
type anyPath struct{}

func (anyPath) Registered(string, string) bool { return true }

// onePath is the only path that is registered.
type onePath string

func (p onePath) Registered(of, path string) bool { return of == ring && path == string(p) }

// Whoever does not know the path of a ring gets what every unknown path gets, before anything of the request is read.
func TestOnlyRegisteredPathsAreAnswered(t *testing.T) {
	h, registry := newHandler(t, fixedRings{ring: newRing(3)})
	known := contract.WebhookPath(ring) + "/secret"
	h.Paths = onePath(known)

	unknown := httptest.NewRecorder()
	http.NewServeMux().ServeHTTP(unknown, post("/", ""))

	for _, path := range []string{contract.WebhookPath(ring), contract.WebhookPath(ring) + "/", known + "s", known + "/", contract.WebhookPath("made-up") + "/secret", contract.WebhookPathPrefix} {
		for _, method := range []string{http.MethodPost, http.MethodGet} {
			r := httptest.NewRequest(method, path, iotest.ErrReader(errors.New("the body should not be read")))
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			require.Equal(t, unknown.Result(), w.Result(), path)
		}
	}

	require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP clusterring_assigner_admission_errors_total HTTP requests that were answered with an error, by status code. 404: they were not sent to the registered path of a ring. Others: they were not admission reviews.
# TYPE clusterring_assigner_admission_errors_total counter
clusterring_assigner_admission_errors_total{code="404"} 12
`), "clusterring_assigner_admission_errors_total", "clusterring_assigner_admission_requests_total"))

	w := httptest.NewRecorder()
	h.ServeHTTP(w, post(known, reviewOf(plain)))
	require.Equal(t, http.StatusOK, w.Code)
}
