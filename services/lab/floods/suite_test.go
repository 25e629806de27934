package floods_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/services/lab/house"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
	"github.com/clusterring/clusterring/tools/testkit/services"
)

const (
	// patience is how long a test waits for a condition.
	patience = 2 * time.Minute
	interval = 20 * time.Millisecond
)

func TestMain(m *testing.M) { os.Exit(house.Main(m)) }

// flooded are the services under a flood.
type flooded struct{ *house.House }

// begin starts the services, and stops them at the end of the test. They must then be ready, and have kept to their
// limits.
func begin(t *testing.T) *flooded {
	t.Helper()
	t.Setenv("GOMEMLIMIT", "off") // the manifests set it; a limit of the kernel would not ask for it

	h := &flooded{house.New(t)}
	h.Begin("--grpc-bind-address="+h.Queries, "--plaintext")

	return h
}

// registered returns where API servers ask about the objects of a new ring. Nobody else is answered there, so who sends
// floods knows the path.
func (h *flooded) registered(ring string) (url string) {
	h.T.Helper()
	newRing(h.T, h.Plane, ring)

	c := &admissionregistrationv1.MutatingWebhookConfiguration{}

	require.Eventually(h.T, func() bool {
		return h.Plane.Client.Get(h.T.Context(), types.NamespacedName{Name: contract.WebhookConfigurationName(ring)},
			c) == nil
	}, patience, interval, "the ring should be registered")

	return *c.Webhooks[0].ClientConfig.URL
}

// survived requires that no service has died, that each is ready, that none has used more than half of the memory that
// its Deployment allows, and that no metric shows what the attacker has chosen.
func (h *flooded) survived(chosen ...string) {
	h.T.Helper()

	select {
	case err := <-h.Died():
		require.NoError(h.T, err)
	default:
	}

	require.NoError(h.T, h.Ready(h.T.Context(), services.All...))

	for _, name := range services.All {
		limit, peak := limitOf(h.T, name), peakOf(h.T, h.Process(name).PID())
		h.T.Logf("%s: %d of %d MiB", name, peak>>20, limit>>20)
		require.Less(h.T, peak, limit/2, "%s has used more memory than half of its limit in deploy/base/%s", name, name)

		text := h.metrics(name)
		require.Contains(h.T, text, "clusterring_build_info")

		for _, value := range chosen {
			require.NotContains(h.T, text, value, "a metric of %s", name)
		}
	}
}

// metrics returns what a service serves at /metrics.
func (h *flooded) metrics(name string) string {
	h.T.Helper()

	request, err := http.NewRequestWithContext(h.T.Context(), http.MethodGet,
		"http://"+h.Addresses(name).Metrics+"/metrics", http.NoBody)
	require.NoError(h.T, err)

	transport := &http.Transport{DisableKeepAlives: true}
	response, err := (&http.Client{Transport: transport}).Do(request)
	require.NoError(h.T, err)

	text, err := io.ReadAll(response.Body)
	require.NoError(h.T, errors.Join(err, response.Body.Close()))
	require.Equal(h.T, http.StatusOK, response.StatusCode)

	return string(text)
}

// limitOf returns the memory limit in the Deployment of a service, in bytes.
func limitOf(t *testing.T, service string) int64 {
	t.Helper()

	content, err := os.ReadFile(filepath.Join(localplane.Root(), "deploy/base", service, "deployment.yaml"))
	require.NoError(t, err)

	documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(content), 4096)

	for {
		var d appsv1.Deployment

		err := documents.Decode(&d)
		require.NotErrorIs(t, err, io.EOF, "no Deployment of %s", service)

		if err == nil && d.Kind == "Deployment" {
			limit := d.Spec.Template.Spec.Containers[0].Resources.Limits.Memory().Value()
			require.Positive(t, limit)

			return limit
		}
	}
}

// peakOf returns the largest resident memory that a process has ever had, in bytes.
func peakOf(t *testing.T, pid int) int64 {
	t.Helper()

	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(t, err)

	for line := range strings.Lines(string(status)) {
		if value, is := strings.CutPrefix(line, "VmHWM:"); is {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
			require.NoError(t, err)

			return kib << 10
		}
	}

	require.Fail(t, "the system does not tell the peak of a process")

	return 0
}
