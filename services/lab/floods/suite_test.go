package floods_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
	"github.com/clusterring/clusterring/tools/testkit/process"
	"github.com/clusterring/clusterring/tools/testkit/services"
)

const (
	// root is that of the repository.
	root = "../../.."
	// patience is how long a test waits for a condition.
	patience = 2 * time.Minute
	interval = 20 * time.Millisecond
)

// built is the directory of the binaries, "" until they are needed.
var built string

func TestMain(m *testing.M) {
	code := localplane.Main(m, v1alpha1.AddToScheme)

	if err := os.RemoveAll(built); err != nil {
		panic(err)
	}
	os.Exit(code)
}

// binaries builds the services once, and returns the directory they are in.
var binaries = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "floods-")
	if err != nil {
		return "", err
	}

	built = dir

	for _, name := range services.All {
		build := exec.Command("go", "build", "-buildvcs=false", "-o", filepath.Join(dir, name), "./services/"+name+"/cmd/"+name)
		build.Dir, build.Stderr = root, os.Stderr

		build.Env = append(os.Environ(), "CGO_ENABLED=0")

		if err := build.Run(); err != nil {
			return "", fmt.Errorf("build %s: %w", name, err)
		}
	}

	return dir, nil
})

// house are the four services.
type house struct {
	*services.Group

	t     *testing.T
	plane *localplane.Plane
	// webhook and queries are the addresses of the assigner's webhook and of ringquery.
	webhook, queries string
}

// begin starts the services, and stops them at the end of the test. They must then be ready, and have kept to their limits.
func begin(t *testing.T) *house {
	t.Helper()

	t.Setenv("GOMEMLIMIT", "off") // the manifests set it; a limit of the kernel would not ask for it

	bin, err := binaries()
	require.NoError(t, err)
	free, err := process.FreePorts(2)
	require.NoError(t, err)

	plane := localplane.Shared(t)
	h := &house{t: t, plane: plane, webhook: free[0], queries: free[1]}
	h.Group = services.New(services.Options{Plane: plane, BinDir: bin, LogDir: t.TempDir(), ShownLines: 20})
	t.Cleanup(func() { require.NoError(t, h.Stop()) })

	alone := "--leader-elect=false" // on a slow machine, a flood of the API server ends the term of a leader

	require.NoError(t, h.Start(t.Context(),
		services.Spec{Name: services.LeaseMonitor, Binary: services.LeaseMonitor, Args: []string{alone}},
		services.Spec{Name: services.Assigner, Binary: services.Assigner, Args: append(services.Webhook(free[0], free[0]), alone)},
		services.Spec{Name: services.Rebalancer, Binary: services.Rebalancer, Args: []string{alone, "--settle-period=" + services.SettlePeriod.String()}},
		services.Spec{Name: services.RingQuery, Binary: services.RingQuery, Args: []string{"--grpc-bind-address=" + free[1], "--plaintext"}},
	))

	return h
}

// registered returns where API servers ask about the objects of a new ring. Nobody else is answered there, so who sends floods knows the path.
func (h *house) registered(ring string) (url string) {
	h.t.Helper()
	newRing(h.t, h.plane, ring)

	c := &admissionregistrationv1.MutatingWebhookConfiguration{}

	require.Eventually(h.t, func() bool {
		return h.plane.Client.Get(h.t.Context(), types.NamespacedName{Name: contract.WebhookConfigurationName(ring)}, c) == nil
	}, patience, interval, "the ring should be registered")

	return *c.Webhooks[0].ClientConfig.URL
}

// survived requires that no service has died, that each is ready, that none has used more than half of the memory that its Deployment allows, and that
// no metric shows what the attacker has chosen.
func (h *house) survived(chosen ...string) {
	h.t.Helper()

	select {
	case err := <-h.Died():
		require.NoError(h.t, err)
	default:
	}

	require.NoError(h.t, h.Ready(h.t.Context(), services.All...))

	for _, name := range services.All {
		limit, peak := limitOf(h.t, name), peakOf(h.t, h.Process(name).PID())
		h.t.Logf("%s: %d of %d MiB", name, peak>>20, limit>>20)
		require.Less(h.t, peak, limit/2, "%s has used more memory than half of its limit in deploy/base/%s", name, name)

		text := h.metrics(name)
		require.Contains(h.t, text, "clusterring_build_info")

		for _, value := range chosen {
			require.NotContains(h.t, text, value, "a metric of %s", name)
		}
	}
}

// metrics returns what a service serves at /metrics.
func (h *house) metrics(name string) string {
	h.t.Helper()

	request, err := http.NewRequestWithContext(h.t.Context(), http.MethodGet, "http://"+h.Addresses(name).Metrics+"/metrics", http.NoBody)
	require.NoError(h.t, err)

	transport := &http.Transport{DisableKeepAlives: true}
	response, err := (&http.Client{Transport: transport}).Do(request)
	require.NoError(h.t, err)

	text, err := io.ReadAll(response.Body)
	require.NoError(h.t, errors.Join(err, response.Body.Close()))
	require.Equal(h.t, http.StatusOK, response.StatusCode)

	return string(text)
}

// limitOf returns the memory limit in the Deployment of a service, in bytes.
func limitOf(t *testing.T, service string) int64 {
	t.Helper()

	content, err := os.ReadFile(filepath.Join(root, "deploy/base", service, "deployment.yaml"))
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
